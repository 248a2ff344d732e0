"""The books as bytes, and back: the scheduler's arrays as they lie in memory, the rest as JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import zstandard

from berth.live.books import Books
from berth.live.job import attempt_of, job_of
from berth.live.setup import setup_of
from berth.schedule.view import World

_PLAIN = ("shut", "foreign", "users", "step_s", "durations", "submitted", "now", "wake")


def save(books: Books) -> bytes:
    """All that the books hold."""
    facts: dict[str, Any] = {name: getattr(books, name) for name in _PLAIN}
    facts["setup"] = books.setup.plain()
    facts["jobs"] = [job.plain() for job in books.jobs.values()]
    facts["rows"] = [None if job is None else job.id for job in books.rows]
    facts["attempts"] = [attempt.plain() for attempt in books.attempts.values()]
    out = io.BytesIO()
    text = json.dumps(facts).encode()
    out.write(len(text).to_bytes(8, "little") + text)
    for array in books.world:
        np.save(out, array, allow_pickle=False)
    return zstandard.ZstdCompressor(level=1).compress(out.getvalue())


def load(data: bytes) -> Books:
    """The books that were saved by the same code."""
    source = io.BytesIO(zstandard.ZstdDecompressor().decompress(data))
    facts = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    books = Books(setup_of(facts["setup"]))
    books.world = World(*(np.load(source, allow_pickle=False) for _ in World._fields))
    for name in _PLAIN:
        setattr(books, name, facts[name])
    books.step_s = {key: {int(tier): s for tier, s in known.items()} for key, known in books.step_s.items()}
    for plain in facts["jobs"]:
        job = job_of(plain)
        books.jobs[job.id] = job
    books.rows = [None if name is None else books.jobs[name] for name in facts["rows"]]
    for plain in facts["attempts"]:  # in the order in which they were decided
        attempt = attempt_of(plain)
        books.attempts[attempt.token] = attempt
        given = books.jobs[attempt.job].token == attempt.token
        books.devices.restore(attempt.token, attempt.seats, given=given)
    return books
