"""Snapshots of the controller's state: the scheduler's arrays as they are in memory, the rest as JSON.

A snapshot names its form: the layout of the arrays and the names of all other fields. Any version with the same form
reads it. Increase `_FORM` when a field keeps its name and type but changes its meaning.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import zstandard

from berth.live.job import Attempt, Job, attempt_from_dict, job_from_dict
from berth.live.lifecycle import DELAYED
from berth.live.setup import Setup, setup_from_dict, usable
from berth.live.state import ControllerState
from berth.schedule.records import Array, World

_FORM = 1
# other fields: the name in a snapshot, and the attribute
_KEPT = {"shut": "unavailable", "foreign": "external"} | {
    name: name for name in ("users", "step_s", "durations", "submitted", "epoch", "now", "wake")
}


def facts_of(state: ControllerState) -> dict[str, Any]:
    """Return all of a state but the scheduler's arrays."""
    facts: dict[str, Any] = {name: getattr(state, attribute) for name, attribute in _KEPT.items()}
    facts["setup"] = state.setup.to_dict()
    facts["jobs"] = [job.to_dict() for job in state.jobs.values()]
    facts["rows"] = [None if job is None else job.id for job in state.rows]
    facts["attempts"] = [attempt.to_dict() for attempt in state.attempts.values()]
    facts["blocked"] = [[machine, list(numbers)] for machine, numbers in state.devices.blocked.items()]
    return facts


def form_of(world: World) -> str:
    """Return a name for the form of a state with these arrays."""
    layout = [
        (name, repr(np.lib.format.dtype_to_descr(array.dtype)), array.ndim)
        for name, array in world._asdict().items()
    ]
    kept = [_FORM, layout, list(_KEPT), Job.__slots__, Attempt.__slots__]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def same(one: ControllerState, other: ControllerState) -> bool:
    """Return whether two states are equal, to the bit."""
    return facts_of(one) == facts_of(other) and all(map(_equal, one.world, other.world))


def _equal(one: Array, other: Array) -> bool:
    """Compare field by field: padding has no meaning."""
    if one.shape != other.shape:
        return False
    names = one.dtype.names
    return all(one[n].tobytes() == other[n].tobytes() for n in names) if names else np.array_equal(one, other)


def save(state: ControllerState) -> bytes:
    """Return a state as bytes."""
    out = io.BytesIO()
    text = json.dumps({"form": form_of(state.world), **facts_of(state)}).encode()
    out.write(len(text).to_bytes(8, "little") + text)
    for array in state.world:
        np.save(out, array, allow_pickle=False)
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(out.getvalue())


def load(data: bytes, adapt: Callable[[Setup], Setup] = usable) -> ControllerState:
    """Return the state that was saved; raise ValueError if it has another form. `adapt`: see `recover.apply_all`."""
    source = io.BytesIO(zstandard.ZstdDecompressor().decompress(data))
    facts = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    saved = setup_from_dict(facts["setup"])
    state = ControllerState(adapt(saved))
    params = state.world.params
    if facts.get("form") != form_of(state.world):
        raise ValueError("it has another form")
    # a file does not keep the alignment of a dtype, which compiled code needs
    state.world = World(*(np.load(source, allow_pickle=False).view(new.dtype) for new in state.world))
    if state.setup.paused != saved.paused:
        state.world = state.world._replace(params=params)  # those of its substitute
    for name, attribute in _KEPT.items():
        setattr(state, attribute, facts[name])
    state.step_s = {key: {int(tier): s for tier, s in known.items()} for key, known in state.step_s.items()}
    for machine, numbers in facts.get("blocked", ()):  # older versions have none
        state.devices.block(machine, numbers)
    _fill(state, map(job_from_dict, facts["jobs"]), facts["rows"], map(attempt_from_dict, facts["attempts"]))
    return state


def copy_of(state: ControllerState) -> ControllerState:
    """Return a deep copy of a state."""
    new = ControllerState(state.setup)
    new.world = World(*(array.copy() for array in state.world))
    for attribute in _KEPT.values():
        setattr(new, attribute, copy.deepcopy(getattr(state, attribute)))
    new.devices.blocked = dict(state.devices.blocked)
    jobs = (replace(job, alive=list(job.alive)) for job in state.jobs.values())
    rows = [None if job is None else job.id for job in state.rows]
    _fill(new, jobs, rows, map(copy.copy, state.attempts.values()))
    return new


def _fill(
    state: ControllerState, jobs: Iterable[Job], rows: Iterable[str | None], attempts: Iterable[Attempt]
) -> None:
    """Fill an empty state with jobs and attempts; attempts in the order of their decisions."""
    for job in jobs:
        state.jobs[job.id] = job
        if job.state == DELAYED and job.ends_as is None:
            state.delayed.add(job.id)
    state.rows = [None if name is None else state.jobs[name] for name in rows]
    for attempt in attempts:
        state.attempts[attempt.token] = attempt
        given = state.jobs[attempt.job].token == attempt.token
        state.devices.restore(attempt.token, attempt.seats, given=given)
