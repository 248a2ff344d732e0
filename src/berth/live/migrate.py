"""Migration of a state to another cluster or policy: attempts stay on their devices if these still exist."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from berth.live import _kernels
from berth.live.decisions import take_seats
from berth.live.demand import fits
from berth.live.job import Attempt, Job, Seat
from berth.live.lifecycle import DELAYED, QUEUED, transition
from berth.live.scheduled_jobs import with_usage
from berth.live.setup import Setup
from berth.live.state import ControllerState
from berth.schedule.records import Array, JobStatus

_ATTEMPT = ("started_s", "restored_at_s")
_KEPT = (
    "attained_gpu_s",
    "ran_s",
    "evictions",
    "moves",
    "waited_s",
    "first_start_s",
    *_ATTEMPT,
    "deferred_s",
)
_WORK = ("work_s", "true_remaining_s", "estimated_remaining_s", "checkpointed_remaining_s")


def migrate(state: ControllerState, setup: Setup) -> ControllerState:
    """Return the state with another setup; the same state if nothing has changed."""
    if _same(state.setup, setup):
        return state
    new = ControllerState(setup)
    new.now, new.submitted, new.ended = state.now, state.submitted, state.ended
    new.epoch = state.epoch
    new.users, new.durations = state.users, state.durations
    new.world = with_usage(new.world, state.world, new.now)
    if state.setup.tiers == setup.tiers:
        new.step_s = state.step_s
    names = {machine.name: index for index, machine in enumerate(setup.cluster.machines)}
    old_names = [machine.name for machine in state.cluster.machines]
    _requeue_all(state, new)
    for attempt in state.attempts.values():
        _restore_attempt(state, new, attempt, names)
    for machine, shut in enumerate(state.unavailable):
        at = names.get(old_names[machine])
        if at is not None and shut:
            new.unavailable[at] = shut
            _kernels.take_down(new.native_world, at)
    _keep_timers(state, new)
    new.wake = new.now
    return new


def pause(state: ControllerState, why: str) -> ControllerState:
    """Return the state without its policy, which can't be used: it takes records, and nothing is decided."""
    return migrate(state, replace(state.setup, paused=why))


def _same(old: Setup, new: Setup) -> bool:
    before, after = old.to_dict(), new.to_dict()
    return {**before, "code": ""} == {**after, "code": ""}


def _requeue_all(old: ControllerState, new: ControllerState) -> None:
    """Queue all jobs, in the order of their submission."""
    for job in (job for job in old.rows if job is not None):
        record = old.world.jobs[job.row].copy()
        _delay_or_requeue(new, job)
        new.add(job)
        fresh = new.world.jobs[job.row]
        for name in (*_KEPT, "arrival_s"):
            fresh[name] = record[name]
        in_new_shape = _seconds_of_work(old, record, new, fresh)
        for name in _WORK:
            fresh[name] = record[name] * in_new_shape
        if job.state == DELAYED and job.ends_as is None:
            new.delayed.add(job.id)
        elif job.state != DELAYED and (job.ends_as is None or job.token is not None):
            new.join(new.native_world, new.hooks, job.row, new.now)
            fresh["queued_since_s"] = job.since


def _seconds_of_work(old: ControllerState, record: Array, new: ControllerState, fresh: Array) -> float:
    """Return how many seconds in the shape of the new record a second in that of the old one is; 1 for gangs."""
    return _unit_s(new, fresh) / _unit_s(old, record)


def _unit_s(state: ControllerState, record: Array) -> float:
    """Return the seconds per unit of work in a record's shape; 1 where the cluster holds none, and for gangs."""
    return float(state.world.shapes[record["shape"]]["unit_s"]) if record["shape_count"] else 1.0


def _delay_or_requeue(new: ControllerState, job: Job) -> None:
    """Delay a job that the cluster can never hold, until one can."""
    possible = fits(new.setup, job.spec)
    if not possible and job.state == QUEUED:
        transition(job, "unplaceable")
        job.not_before = math.inf
    elif possible and job.state == DELAYED and job.not_before == math.inf:
        transition(job, "ready")
        job.not_before = 0.0


def _restore_attempt(
    old: ControllerState, new: ControllerState, attempt: Attempt, names: dict[str, int]
) -> None:
    """Keep an attempt on its devices; stop one whose machines or shape are gone, and queue its job."""
    job = new.jobs[attempt.job]
    seats = _remaining_seats(old, new, attempt, names)
    holds_place = job.token == attempt.token
    whole = len(seats) == len(attempt.seats) and _keeps_shape(new, job, attempt)
    attempt.seats = seats
    new.attempts[attempt.token] = attempt
    new.devices.restore(attempt.token, seats, given=holds_place and whole)
    if holds_place and whole:
        attempt.tier = tier_of(new, seats)
        record = new.world.jobs[job.row]
        times = {name: float(record[name]) for name in _ATTEMPT}
        reason = int(old.world.jobs[old.jobs[attempt.job].row]["reason"])  # of its start
        take_seats(new, job, seats, attempt.tier, reason, attempt.shape)
        for name, time_s in times.items():
            record[name] = time_s  # it never stopped: nothing is restored
    elif holds_place:
        _requeue_lost(new, job)


def _keeps_shape(new: ControllerState, job: Job, attempt: Attempt) -> bool:
    """Return whether the cluster still has the alternative that an attempt runs."""
    return attempt.shape is None or any(one.shape.name == attempt.shape for one in new.shapes_of(job))


def _requeue_lost(new: ControllerState, job: Job) -> None:
    new.vacate(job, "lost")
    transition(job, "lost", since=new.now)
    if not fits(new.setup, job.spec):
        _kernels.withdraw(new.native_world, job.row)
        new.world.jobs[job.row]["state"] = JobStatus.FUTURE
        _delay_or_requeue(new, job)
        new.delayed.add(job.id)


def _remaining_seats(
    old: ControllerState, new: ControllerState, attempt: Attempt, names: dict[str, int]
) -> tuple[Seat, ...]:
    """Return the seats of an attempt that still exist, as the new cluster numbers machines and device types."""
    kinds = {kind.name: index for index, kind in enumerate(new.cluster.device_types)}
    found = []
    for seat in attempt.seats:
        machine = names.get(old.cluster.machines[seat.machine].name)
        kind = kinds.get(old.cluster.device_types[seat.device_type].name)
        if machine is not None and kind is not None and new.devices.has(machine, kind, seat.devices):
            found.append(replace(seat, machine=machine, device_type=kind))
    return tuple(found)


def tier_of(state: ControllerState, seats: tuple[Seat, ...]) -> int:
    """Return the nearest tier with one group around all of these."""
    machines = [seat.machine for seat in seats]
    for level in range(len(state.cluster.tiers)):
        if len(set(state.cluster.groups[level][machines].tolist())) == 1:
            return level
    return len(state.cluster.tiers) - 1


def _keep_timers(old: ControllerState, new: ControllerState) -> None:
    """Keep learned timers if the policy and the tiers are the same."""
    same = (old.setup.policy, old.setup.paused) == (new.setup.policy, new.setup.paused)
    if not same or old.setup.tiers != new.setup.tiers:
        return
    sizes = old.world.demands["gpus"].tolist()
    for at, gpus in enumerate(new.world.demands["gpus"].tolist()):
        if gpus in sizes:
            new.world.wait_stats[at] = old.world.wait_stats[sizes.index(gpus)]
            rows = np.flatnonzero(new.world.jobs["demand"] == at)
            new.world.jobs["delay_timer_s"][rows] = new.world.wait_stats["timer_s"][at]
