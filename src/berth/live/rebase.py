"""The same jobs on another cluster, or under another policy: what runs stays where it is, if that still exists."""

from __future__ import annotations

import math

import numpy as np

from berth.live import _kernels
from berth.live.books import Books
from berth.live.job import DELAYED, QUEUED, STOPPING, Attempt, Job, Seat
from berth.live.passing import take_seats
from berth.live.rows import with_demand, with_usage
from berth.live.setup import Setup
from berth.live.wants import fits
from berth.schedule import reasons
from berth.schedule.records import FUTURE

_KEPT = ("attained_gpu_s", "ran_s", "evictions", "moves", "waited_s", "first_start_s", "restored_at_s")
_WORK = ("work_s", "true_remaining_s", "estimated_remaining_s", "checkpointed_remaining_s")


def rebase(books: Books, setup: Setup) -> Books:
    """Books with this setup and all that the old ones know; the old ones if nothing has changed."""
    if _same(books.setup, setup):
        return books
    new = Books(setup)
    new.now, new.submitted, new.over = books.now, books.submitted, books.over
    new.epoch = books.epoch
    new.users, new.durations = books.users, books.durations
    new.world = with_usage(new.world, books.world, new.now)
    if books.setup.tiers == setup.tiers:
        new.step_s = books.step_s
    names = {machine.name: index for index, machine in enumerate(setup.cluster.machines)}
    old_names = [machine.name for machine in books.cluster.machines]
    _rejoin(books, new)
    for attempt in books.attempts.values():
        _seat_again(books, new, attempt, names)
    for machine, shut in enumerate(books.shut):
        at = names.get(old_names[machine])
        if at is not None and shut:
            new.shut[at] = shut
            _kernels.take_down(new.scene, at)
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
        _set_aside_or_back(new, job)
        new.write(job)
        fresh = new.world.jobs[job.row]
        for name in (*_KEPT, *_WORK, "arrival_s"):
            fresh[name] = record[name]
        if job.state == DELAYED and job.ends_as is None:
            new.delayed.add(job.id)
        elif job.state != DELAYED and (job.ends_as is None or job.token is not None):
            new.join(new.scene, new.hooks, job.row, new.now)
            fresh["queued_since_s"] = job.since


def _set_aside_or_back(new: Books, job: Job) -> None:
    """A job that this cluster can never hold blocks nobody; it waits for one that can."""
    possible = fits(new.setup, job.spec)
    if not possible and job.state == QUEUED:
        job.state, job.not_before = DELAYED, math.inf
    elif possible and job.state == DELAYED and job.not_before == math.inf:
        job.state, job.not_before = QUEUED, 0.0


def _seat_again(old: Books, new: Books, attempt: Attempt, names: dict[str, int]) -> None:
    """An attempt goes on where it runs; one whose machines are gone stops, and its job waits."""
    job = new.jobs[attempt.job]
    seats = _translated(old, new, attempt, names)
    holds_place, whole = job.token == attempt.token, len(seats) == len(attempt.seats)
    attempt.seats = seats
    new.attempts[attempt.token] = attempt
    new.devices.restore(attempt.token, seats, given=holds_place and whole)
    if holds_place and whole:
        attempt.tier = tier_of(new, seats)
        record = new.world.jobs[job.row]
        restored_at_s = float(record["restored_at_s"])
        take_seats(new, job, seats, attempt.tier, reasons.NONE)
        record["restored_at_s"] = restored_at_s  # it went on all the time: nothing is restored
    elif holds_place:
        _unseat(new, job, attempt)


def _unseat(new: Books, job: Job, attempt: Attempt) -> None:
    job.token, job.state, job.since = None, QUEUED, new.now
    attempt.state, attempt.why = STOPPING, "lost"
    if not fits(new.setup, job.spec):
        _kernels.withdraw(new.scene, job.row)
        new.world.jobs[job.row]["state"] = FUTURE
        _set_aside_or_back(new, job)
        new.delayed.add(job.id)


def _translated(old: Books, new: Books, attempt: Attempt, names: dict[str, int]) -> tuple[Seat, ...]:
    """Those of its seats that still exist, as the new cluster numbers machines and device types."""
    kinds = {kind.name: index for index, kind in enumerate(new.cluster.device_types)}
    found = []
    for seat in attempt.seats:
        machine = names.get(old.cluster.machines[seat.machine].name)
        kind = kinds.get(old.cluster.device_types[seat.kind].name)
        if machine is not None and kind is not None and new.devices.has(machine, kind, seat.devices):
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
            new.world.wait_stats[at] = old.world.wait_stats[sizes.index(gpus)]
            rows = np.flatnonzero(new.world.jobs["demand"] == at)
            new.world.jobs["delay_timer_s"][rows] = new.world.wait_stats["timer_s"][at]
