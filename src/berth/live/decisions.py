"""A scheduling pass: its decisions as records, and recorded decisions applied to the state.

`decide` runs the policy. `replay_pass` applies a pass of the journal: it decides again and must come to the same
records, or, where the code has changed since, applies the recorded decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from berth.errors import BerthError, InputError
from berth.live import _kernels
from berth.live.job import Job, Seat, seat_from_list
from berth.live.lifecycle import QUEUED
from berth.live.records import Record
from berth.live.scheduled_shapes import Place, part_seats, tied_places
from berth.live.spec import shape_of
from berth.live.state import ControllerState
from berth.schedule.failures import failure_of
from berth.schedule.records import Action


class ReplayError(BerthError):
    """A pass that decides otherwise than the journal."""


class PolicyFailedError(InputError):
    """A policy that can't be used: a function of it failed, or its file did. The state can't be used any more."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the policy failed: {why}", hint="`berth up --policy fifo` schedules with another")
        self.why = why


def decide(state: ControllerState, now: float) -> list[Record]:
    """Run one pass at `now` and apply its decisions; return its record and one for each decision.

    Raise PolicyFailedError if a function of the policy has failed, now or at an earlier record.
    """
    state.now = now = max(state.now, now)
    state.wake = state.run_pass(state.native_world, state.hooks, state.phases, now)
    why = failure_of(state.policy, state.world.params, lambda row: _name_at(state, row))
    if why is not None:
        raise PolicyFailedError(why)
    count = int(state.world.state[0]["decisions"])
    decisions = state.world.decisions[:count][["what", "job", "reason"]].tolist()
    left = _leave(state, decisions)
    taken = _take(state, decisions)
    made = [_evicted(state, one, taken) for one in left] + taken
    return [Record(now, "pass", body={"decisions": len(made)} if made else {}), *made]


Decisions = Sequence[tuple[int, int, int]]  # what, row, reason


Left = tuple[str, int, set[int]]  # job, reason, machines


def _leave(state: ControllerState, decisions: Decisions) -> list[Left]:
    """Free the devices of evicted and moved jobs; return those that were evicted, why, and from which machines."""
    left: list[Left] = []
    for what, row, reason in decisions:
        job = _job_at(state, row)
        if what == Action.EVICT:
            assert job.token is not None
            left.append((job.id, reason, set(state.attempts[job.token].machines)))
            state.requeue(job, "evict")
        elif what == Action.MOVE and job.token is not None:
            state.vacate(job, "moved")
    return left


def _evicted(state: ControllerState, left: Left, taken: Sequence[Record]) -> Record:
    """Return the record of an eviction, with the jobs that were placed on the machines it leaves."""
    job, reason, machines = left
    by = [one.job for one in taken if one.job != job and machines & {seat[0] for seat in one.body["seats"]}]
    return Record(state.now, "evict", job, {"reason": reason, "by": by} if by else {"reason": reason})


def _take(state: ControllerState, decisions: Decisions) -> list[Record]:
    """Create an attempt for each gang that was placed; return their records."""
    taken = {row: (what, reason) for what, row, reason in decisions if what != Action.EVICT}
    made = []
    for row, (_, reason) in taken.items():
        job, record = _job_at(state, row), state.world.jobs[row]
        kind = "start" if job.state == QUEUED else "move"
        tier, seats = int(record["tier"]), _seats(state, row)
        attempt = state.place(job, seats, tier)
        body = {
            "token": attempt.token,
            "seats": [seat.to_list() for seat in seats],
            "tier": tier,
            "reason": reason,
            "saves": _finite(record["saves_s"]),
            "waited": float(record["waited_s"]),
        } | ({} if attempt.shape is None else {"shape": attempt.shape})
        made.append(Record(state.now, kind, job.id, body))
    return made


def _job_at(state: ControllerState, row: int) -> Job:
    job = state.rows[row]
    assert job is not None
    return job


def _name_at(state: ControllerState, row: int) -> str:
    """Return the id of a job that may have ended since."""
    job = state.rows[row] if row < len(state.rows) else None
    return "that has ended" if job is None else job.id


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _seats(state: ControllerState, row: int) -> tuple[Seat, ...]:
    """Return the devices of a gang that was just placed, by machine."""
    job = _job_at(state, row)
    bound = state.shape_at(job)
    most = int(state.world.jobs[row]["gpus"]) if bound is None else bound.size
    hosts, counts, parts = (np.empty(most, np.int32) for _ in range(3))
    size = _kernels.place_of(state.native_world, row, hosts, counts, parts)
    at = state.world.hosts[hosts[:size]]
    columns = at["machine"], at["device_type"], counts[:size], parts[:size]
    places = sorted(zip(*(column.tolist() for column in columns), strict=True))
    if bound is None:
        return tuple(state.devices.pick(machine, kind, count) for machine, kind, count, _ in places)
    shape = shape_of(job.spec, bound.shape.name)
    assert shape is not None
    return part_seats(shape, bound.shape, places, state.devices, state.cluster)


def replay_pass(state: ControllerState, recorded: Sequence[Record], *, trust: bool) -> None:
    """Apply a pass of the journal: its record, then its decisions."""
    if not trust:
        _apply_as_recorded(state, recorded)
        return
    made = decide(state, recorded[0].time)
    if made != list(recorded):
        raise ReplayError(
            f"the pass at {recorded[0].time:.6f} decides {_short(made)}, and the journal has {_short(recorded)}"
        )


def _short(records: Sequence[Record]) -> str:
    found = [f"{record.kind} {record.job} {record.body.get('seats', '')}" for record in records[1:]]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "") or "nothing"


def _apply_as_recorded(state: ControllerState, recorded: Sequence[Record]) -> None:
    """Apply the decisions of the journal without running the policy."""
    state.now = max(state.now, recorded[0].time)
    state.wake = state.now
    for record in recorded[1:]:
        if record.kind == "move":
            assert record.job is not None
            job = state.jobs[record.job]
            _kernels.give_back(
                state.native_world, state.hooks, job.row, state.now, int(record.body["reason"])
            )
            state.vacate(job, "moved")
    for record in recorded[1:]:
        assert record.job is not None
        job, reason = state.jobs[record.job], int(record.body["reason"])
        if record.kind == "evict":
            _kernels.give_back(state.native_world, state.hooks, job.row, state.now, reason)
            state.requeue(job, "evict")
            continue
        seats = tuple(seat_from_list(seat) for seat in record.body["seats"])
        take_seats(state, job, seats, int(record.body["tier"]), reason, record.body.get("shape"))
        attempt = state.place(job, seats, int(record.body["tier"]))
        assert attempt.token == record.body["token"]


def take_seats(
    state: ControllerState, job: Job, seats: Sequence[Seat], tier: int, reason: int, name: str | None = None
) -> None:
    """Place a waiting job on these devices; `name`: the alternative that it runs."""
    places = [(seat.machine, seat.device_type, len(seat.devices), -1) for seat in seats]
    if name is not None:
        places = _take_shape(state, job, seats, name)
    hosts = state.world.hosts
    where = [
        np.flatnonzero((hosts["machine"] == machine) & (hosts["device_type"] == kind))[0]
        for machine, kind, *_ in places
    ]
    counts, parts = (np.array([place[at] for place in places], np.int32) for at in (2, 3))
    _kernels.start_as_recorded(
        state.native_world, job.row, np.array(where, np.int32), counts, parts, tier, state.now, reason
    )


def _take_shape(state: ControllerState, job: Job, seats: Sequence[Seat], name: str) -> list[Place]:
    """Describe a job by one of its alternatives; return its places on these devices."""
    bound = state.shapes_of(job)
    number = next((at for at, one in enumerate(bound) if one.shape.name == name), None)
    if number is None:
        raise ReplayError(
            f"{job.id} is recorded to run as {name}, which cluster {state.cluster.name} does not hold"
        )
    first = int(state.world.jobs[job.row]["first_shape"])
    _kernels.use_shape(state.native_world, job.row, first + number)
    shape = shape_of(job.spec, name)
    assert shape is not None
    return tied_places(seats, bound[number], shape)
