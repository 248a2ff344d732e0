"""The books as bytes, and back: the scheduler's arrays as they lie in memory, the rest as JSON.

A snapshot names its form: the layout of the arrays and the names of all that is kept beside them. Any berth with the
same form reads it, whatever has changed in the code since. Where a field keeps its name and its type but changes its
meaning, raise `_FORM`.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import zstandard

from berth.live.books import Books
from berth.live.job import DELAYED, Attempt, Job, attempt_of, job_of
from berth.live.setup import setup_of
from berth.schedule.records import Array, World

_FORM = 1
_PLAIN = ("shut", "foreign", "users", "step_s", "durations", "submitted", "epoch", "now", "wake")


def facts_of(books: Books) -> dict[str, Any]:
    """All that the books hold beside the scheduler's arrays."""
    facts: dict[str, Any] = {name: getattr(books, name) for name in _PLAIN}
    facts["setup"] = books.setup.plain()
    facts["jobs"] = [job.plain() for job in books.jobs.values()]
    facts["rows"] = [None if job is None else job.id for job in books.rows]
    facts["attempts"] = [attempt.plain() for attempt in books.attempts.values()]
    facts["blocked"] = [[machine, list(numbers)] for machine, numbers in books.devices.blocked.items()]
    return facts


def form_of(world: World) -> str:
    """Return a name for the form of a state with these arrays."""
    layout = [
        (name, repr(np.lib.format.dtype_to_descr(array.dtype)), array.ndim)
        for name, array in world._asdict().items()
    ]
    kept = [_FORM, layout, _PLAIN, Job.__slots__, Attempt.__slots__]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def same(one: Books, other: Books) -> bool:
    """Whether two books hold the same, to the bit."""
    return facts_of(one) == facts_of(other) and all(map(_equal, one.world, other.world))


def _equal(one: Array, other: Array) -> bool:
    """Field by field: what lies between the fields is nobody's."""
    if one.shape != other.shape:
        return False
    names = one.dtype.names
    return all(one[n].tobytes() == other[n].tobytes() for n in names) if names else np.array_equal(one, other)


def save(books: Books) -> bytes:
    """All that the books hold."""
    out = io.BytesIO()
    text = json.dumps({"form": form_of(books.world), **facts_of(books)}).encode()
    out.write(len(text).to_bytes(8, "little") + text)
    for array in books.world:
        np.save(out, array, allow_pickle=False)
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(out.getvalue())


def load(data: bytes) -> Books:
    """The books that were saved, by this code or another; ValueError: they are of another form."""
    source = io.BytesIO(zstandard.ZstdDecompressor().decompress(data))
    facts = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    books = Books(setup_of(facts["setup"]))
    if facts.get("form") != form_of(books.world):
        raise ValueError("it is of another form")
    # a file does not keep that a dtype is aligned, and compiled code minds
    books.world = World(*(np.load(source, allow_pickle=False).view(new.dtype) for new in books.world))
    for name in _PLAIN:
        setattr(books, name, facts[name])
    books.step_s = {key: {int(tier): s for tier, s in known.items()} for key, known in books.step_s.items()}
    for machine, numbers in facts.get("blocked", ()):  # older berths have none
        books.devices.block(machine, numbers)
    _fill(books, map(job_of, facts["jobs"]), facts["rows"], map(attempt_of, facts["attempts"]))
    return books


def copy_of(books: Books) -> Books:
    """Books that share nothing with these that ever changes."""
    new = Books(books.setup)
    new.world = World(*(array.copy() for array in books.world))
    for name in _PLAIN:
        setattr(new, name, copy.deepcopy(getattr(books, name)))
    new.devices.blocked = dict(books.devices.blocked)
    jobs = (replace(job, alive=list(job.alive)) for job in books.jobs.values())
    rows = [None if job is None else job.id for job in books.rows]
    _fill(new, jobs, rows, map(copy.copy, books.attempts.values()))
    return new


def _fill(books: Books, jobs: Iterable[Job], rows: Iterable[str | None], attempts: Iterable[Attempt]) -> None:
    """Puts jobs and attempts into books that have none; attempts in the order in which they were decided."""
    for job in jobs:
        books.jobs[job.id] = job
        if job.state == DELAYED and job.ends_as is None:
            books.delayed.add(job.id)
    books.rows = [None if name is None else books.jobs[name] for name in rows]
    for attempt in attempts:
        books.attempts[attempt.token] = attempt
        given = books.jobs[attempt.job].token == attempt.token
        books.devices.restore(attempt.token, attempt.seats, given=given)
