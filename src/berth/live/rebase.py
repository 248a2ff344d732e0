"""The same jobs on another cluster, or under another policy: what runs stays where it is, if that still exists."""

from __future__ import annotations

import numpy as np

from berth.live import _kernels
from berth.live.books import Books
from berth.live.job import DELAYED, QUEUED, STOPPING, Attempt, Job, Seat
from berth.live.passing import take_seats
from berth.live.rows import with_demand
from berth.live.setup import Setup
from berth.schedule import reasons

_KEPT = ("attained", "ran", "done", "evictions", "moves", "waited", "lost", "exposed", "first_start")
_WORK = ("work", "left", "remaining", "saved", "booked")


def rebase(books: Books, setup: Setup) -> Books:
    """Books with this setup and all that the old ones know; the old ones if nothing has changed."""
    if _same(books.setup, setup):
        return books
    new = Books(setup)
    new.now, new.submitted, new.over = books.now, books.submitted, books.over
    new.users, new.durations = books.users, books.durations
    if books.setup.tiers == setup.tiers:
        new.step_s = books.step_s
    names = {machine.name: index for index, machine in enumerate(setup.cluster.machines)}
    old_names = [machine.name for machine in books.cluster.machines]
    for machine, shut in enumerate(books.shut):
        at = names.get(old_names[machine])
        if at is not None and shut:
            new.shut[at] = shut
            _kernels.take_down(new.world, at)
    _rejoin(books, new)
    for attempt in books.attempts.values():
        _seat_again(books, new, attempt, names)
    _keep_windows(books, new)
    new.wake = new.now
    return new


def _same(old: Setup, new: Setup) -> bool:
    before, after = old.plain(), new.plain()
    return {**before, "code": ""} == {**after, "code": ""}


def _rejoin(old: Books, new: Books) -> None:
    """All jobs wait, in the order in which they came."""
    for job in (job for job in old.rows if job is not None):
        record = old.world.jobs[job.row].copy()
        new.make_room()
        new.world = with_demand(new.world, job.spec.gpus, new.timers)
        job.row = len(new.rows)
        new.rows.append(job)
        new.jobs[job.id] = job
        new.write(job)
        fresh = new.world.jobs[job.row]
        for name in (*_KEPT, *_WORK, "arrival"):
            fresh[name] = record[name]
        if job.state == DELAYED and job.ends_as is None:
            new.delayed.add(job.id)
        elif job.state != DELAYED and (job.ends_as is None or job.token is not None):
            new.join(new.world, new.hooks, job.row, new.now)
            fresh["since"] = job.since


def _seat_again(old: Books, new: Books, attempt: Attempt, names: dict[str, int]) -> None:
    """An attempt goes on where it runs; one whose machines are gone stops, and its job waits."""
    job = new.jobs[attempt.job]
    seats = _translated(old, new, attempt, names)
    holds_place = job.token == attempt.token
    if seats is not None:
        attempt.seats = seats
        new.attempts[attempt.token] = attempt
        new.devices.restore(attempt.token, seats, given=holds_place)
        if holds_place:
            tier = tier_of(new, seats)
            attempt.tier = tier
            take_seats(new, job, seats, tier, reasons.NONE)
        return
    attempt.seats = ()
    new.attempts[attempt.token] = attempt
    if holds_place:
        _unseat(new, job, attempt)


def _unseat(new: Books, job: Job, attempt: Attempt) -> None:
    job.token, job.state, job.since = None, QUEUED, new.now
    attempt.state, attempt.why = STOPPING, "lost"


def _translated(old: Books, new: Books, attempt: Attempt, names: dict[str, int]) -> tuple[Seat, ...] | None:
    """Its seats as the new cluster numbers machines and device types."""
    kinds = {kind.name: index for index, kind in enumerate(new.cluster.device_types)}
    found = []
    for seat in attempt.seats:
        machine = names.get(old.cluster.machines[seat.machine].name)
        kind = kinds.get(old.cluster.device_types[seat.kind].name)
        if machine is None or kind is None or not new.devices.has(machine, kind, seat.devices):
            return None
        found.append(Seat(machine, kind, seat.devices))
    return tuple(found)


def tier_of(books: Books, seats: tuple[Seat, ...]) -> int:
    """The nearest tier with one group around all of these."""
    machines = [seat.machine for seat in seats]
    for level in range(len(books.cluster.tiers)):
        if len(set(books.cluster.groups[level][machines].tolist())) == 1:
            return level
    return len(books.cluster.tiers) - 1


def _keep_windows(old: Books, new: Books) -> None:
    """Learned timers stay where the policy and the tiers are the same."""
    if old.setup.policy != new.setup.policy or old.setup.tiers != new.setup.tiers:
        return
    sizes = old.world.demands["gpus"].tolist()
    for at, gpus in enumerate(new.world.demands["gpus"].tolist()):
        if gpus in sizes:
            new.world.offers[at] = old.world.offers[sizes.index(gpus)]
            rows = np.flatnonzero(new.world.jobs["demand"] == at)
            new.world.jobs["timer"][rows] = new.world.offers["timer"][at]
