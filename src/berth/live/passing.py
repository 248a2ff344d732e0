"""A pass over the books: what it decides becomes records, and records become what it decided.

`decide` runs the policy. `follow` folds a pass that stands in the journal: it decides again and must come to the same
records, or, where the code has changed since, takes the decisions as they stand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from berth.errors import BerthError
from berth.live import _kernels
from berth.live.books import Books
from berth.live.job import QUEUED, Job, Seat, seat_of
from berth.live.records import Record
from berth.schedule.failures import raise_failure
from berth.schedule.records import EVICT, MOVE


class ReplayError(BerthError):
    """A pass came to other decisions than the journal has."""


def decide(books: Books, now: float) -> list[Record]:
    """One pass at `now`: the record of it, and one for each decision, all of them done in the books."""
    books.now = now = max(books.now, now)
    books.wake = books.run_pass(books.scene, books.hooks, books.steps, now)
    raise_failure(books.policy, books.world.params, lambda row: _job_at(books, row).id)
    count = int(books.world.state[0]["decisions"])
    decisions = books.world.decisions[:count][["what", "job", "reason"]].tolist()
    left = _leave(books, decisions)
    taken = _take(books, decisions)
    made = [_evicted(books, one, taken) for one in left] + taken
    return [Record(now, "pass", body={"decisions": len(made)} if made else {}), *made]


Decisions = Sequence[tuple[int, int, int]]  # what, row, reason


Left = tuple[str, int, set[int]]  # job, reason, machines


def _leave(books: Books, decisions: Decisions) -> list[Left]:
    """Who leaves a place does so before anybody takes one; returns who was evicted, why, and from where."""
    left: list[Left] = []
    for what, row, reason in decisions:
        job = _job_at(books, row)
        if what == EVICT:
            assert job.token is not None
            left.append((job.id, reason, set(books.attempts[job.token].machines)))
            books.wait_again(job, "evicted")
        elif what == MOVE and job.token is not None:
            books.vacate(job, "moved")
    return left


def _evicted(books: Books, left: Left, taken: Sequence[Record]) -> Record:
    """The record of an eviction, with those who took a place on the machines it leaves."""
    job, reason, machines = left
    by = [one.job for one in taken if one.job != job and machines & {seat[0] for seat in one.body["seats"]}]
    return Record(books.now, "evict", job, {"reason": reason, "by": by} if by else {"reason": reason})


def _take(books: Books, decisions: Decisions) -> list[Record]:
    """Gangs take the places at which the pass left them, each one once."""
    taken = {row: (what, reason) for what, row, reason in decisions if what != EVICT}
    made = []
    for row, (_, reason) in taken.items():
        job, record = _job_at(books, row), books.world.jobs[row]
        kind = "start" if job.state == QUEUED else "move"
        tier, seats = int(record["tier"]), _seats(books, row)
        attempt = books.place(job, seats, tier)
        body = {
            "token": attempt.token,
            "seats": [seat.plain() for seat in seats],
            "tier": tier,
            "reason": reason,
            "saves": _finite(record["saves_s"]),
            "waited": float(record["waited_s"]),
        }
        made.append(Record(books.now, kind, job.id, body))
    return made


def _job_at(books: Books, row: int) -> Job:
    job = books.rows[row]
    assert job is not None
    return job


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _seats(books: Books, row: int) -> tuple[Seat, ...]:
    """The devices of a gang that has just taken its places, machine by machine."""
    gpus = int(books.world.jobs[row]["gpus"])
    hosts, counts = np.empty(gpus, np.int32), np.empty(gpus, np.int32)
    size = _kernels.place_of(books.scene, row, hosts, counts)
    at = books.world.hosts[hosts[:size]]
    places = sorted(
        zip(at["machine"].tolist(), at["device_type"].tolist(), counts[:size].tolist(), strict=True)
    )
    return tuple(books.devices.pick(machine, kind, count) for machine, kind, count in places)


def follow(books: Books, told: Sequence[Record], *, trust: bool) -> None:
    """Folds a pass that stands in the journal: its record, then its decisions."""
    if not trust:
        _obey(books, told)
        return
    made = decide(books, told[0].time)
    if made != list(told):
        raise ReplayError(
            f"the pass at {told[0].time:.6f} decides {_short(made)}, and the journal has {_short(told)}"
        )


def _short(records: Sequence[Record]) -> str:
    found = [f"{record.kind} {record.job} {record.body.get('seats', '')}" for record in records[1:]]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "") or "nothing"


def _obey(books: Books, told: Sequence[Record]) -> None:
    """Does what the journal says, asking nobody."""
    books.now = max(books.now, told[0].time)
    books.wake = books.now
    for record in told[1:]:
        if record.kind == "move":
            assert record.job is not None
            job = books.jobs[record.job]
            _kernels.give_back(books.scene, books.hooks, job.row, books.now, int(record.body["reason"]))
            books.vacate(job, "moved")
    for record in told[1:]:
        assert record.job is not None
        job, reason = books.jobs[record.job], int(record.body["reason"])
        if record.kind == "evict":
            _kernels.give_back(books.scene, books.hooks, job.row, books.now, reason)
            books.wait_again(job, "evicted")
            continue
        seats = tuple(seat_of(seat) for seat in record.body["seats"])
        take_seats(books, job, seats, int(record.body["tier"]), reason)
        attempt = books.place(job, seats, int(record.body["tier"]))
        assert attempt.token == record.body["token"]


def take_seats(books: Books, job: Job, seats: Sequence[Seat], tier: int, reason: int) -> None:
    """A waiting job takes just these places in the world."""
    hosts = books.world.hosts
    where = [
        np.flatnonzero((hosts["machine"] == s.machine) & (hosts["device_type"] == s.kind))[0] for s in seats
    ]
    counts = np.array([len(seat.devices) for seat in seats], np.int32)
    _kernels.start_as_recorded(
        books.scene, job.row, np.array(where, np.int32), counts, tier, books.now, reason
    )
