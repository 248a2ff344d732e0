"""Invariants of a controller's state, recomputed from its attempts rather than from the scheduler's counters."""

from __future__ import annotations

from collections import Counter

import numpy as np

from berth.live.job import Job
from berth.live.lifecycle import DELAYED, PLACED, QUEUED, WAITS
from berth.live.spec import shape_of
from berth.live.state import ControllerState
from berth.schedule.records import JobStatus
from berth.workload.binding import BoundShape


def audit(state: ControllerState) -> list[str]:
    """Return every violated invariant as a sentence; empty if there is none."""
    return [*_devices(state), *_jobs(state), *_queue(state), *_attempts(state)]


def _devices(state: ControllerState) -> list[str]:
    """No device is assigned twice, and the free devices are those that are not assigned."""
    found: list[str] = []
    given: Counter[tuple[int, int]] = Counter()
    by_host: Counter[tuple[int, int]] = Counter()
    for job in state.jobs.values():
        if job.token is None:
            continue
        for seat in state.attempts[job.token].seats:
            given.update((seat.machine, number) for number in seat.devices)
            by_host[seat.machine, seat.device_type] += len(seat.devices)
    found += [
        f"device {number} of machine {machine} is assigned twice"
        for (machine, number), n in given.items()
        if n > 1
    ]
    free_of_machine: Counter[int] = Counter()
    for host in state.world.hosts:
        machine, kind = int(host["machine"]), int(host["device_type"])
        held = by_host[machine, kind]
        if state.unavailable[machine]:
            if host["free"] != 0:
                found.append(f"machine {machine} is unavailable and offers {host['free']} devices")
            continue
        free_of_machine[machine] += int(host["free"])
        if host["free"] + held > host["size"]:
            found.append(f"machine {machine} holds {held} of {host['size']} and offers {host['free']}")
    for machine, shut in enumerate(state.unavailable):
        held = sum(by_host[machine, kind] for kind, _ in state.cluster.machines[machine].devices)
        expected = state.cluster.machines[machine].size - held - state.external[machine]
        if not shut and free_of_machine[machine] != expected:
            found.append(f"machine {machine} offers {free_of_machine[machine]} devices, not {expected}")
    return found


def _jobs(state: ControllerState) -> list[str]:
    """A job's state, its place and the scheduler's record of it agree; gangs are whole."""
    found: list[str] = []
    wanted = {QUEUED: JobStatus.WAITING, PLACED: JobStatus.RUNNING, DELAYED: JobStatus.FUTURE}
    for job in state.jobs.values():
        if state.rows[job.row] is not job:
            found.append(f"{job.id} is not in its row")
        if job.ends_as is not None:
            if not job.alive:
                found.append(f"{job.id} is {job.ends_as} and still kept")
            continue
        record = state.world.jobs[job.row]
        if record["state"] != wanted[job.state]:
            found.append(f"{job.id} is {job.state}, and in the world {record['state']}")
        if (job.token is not None) != (job.state == PLACED):
            found.append(f"{job.id} is {job.state} with token {job.token}")
        if job.token is not None:
            seats = state.attempts[job.token].seats
            shape = state.shape_at(job)
            if shape is not None:
                found += _parts(state, job, shape)
            elif sum(len(seat.devices) for seat in seats) != job.spec.gpus:
                found.append(f"{job.id} has a part of its gang only")
            elif len({seat.device_type for seat in seats}) != 1:
                found.append(f"{job.id} has devices of several types")
            if state.attempts[job.token].tier > record["widest_tier"]:
                found.append(f"{job.id} is spread beyond the tier it requires")
    return found


def _parts(state: ControllerState, job: Job, bound: BoundShape) -> list[str]:
    """Every part of a shape has its devices, and lies within one group of its tier."""
    assert job.token is not None
    attempt, found = state.attempts[job.token], []
    if attempt.shape != bound.shape.name:
        found.append(f"{job.id} runs as {attempt.shape}, and in the world as {bound.shape.name}")
    shape = shape_of(job.spec, attempt.shape)
    assert shape is not None
    for part in bound.shape.parts:
        seats = [seat for seat in attempt.seats if shape.parts[seat.part or 0].name == part.name]
        held: Counter[str] = Counter()
        for seat in seats:
            held[state.cluster.device_types[seat.device_type].name] += len(seat.devices)
        if held != Counter(dict(part.devices)):
            found.append(f"part {part.name} of {job.id} has {dict(held)}, not {dict(part.devices)}")
        tier = None if part.tier is None else state.setup.tiers.index(part.tier)
        groups = {int(state.cluster.groups[tier][seat.machine]) for seat in seats} if tier is not None else ()
        if len(groups) > 1:
            found.append(f"part {part.name} of {job.id} is spread over {len(groups)} groups of {part.tier}")
    return found


def _queue(state: ControllerState) -> list[str]:
    """The queue, the list of running jobs and `delayed` hold exactly the jobs in these states."""
    counters = state.world.state[0]
    waiting = state.world.waiting[counters["queue_start"] : counters["queue_stop"]]
    running = state.world.running[: counters["running"]]
    found = []
    for name, rows, wanted in (("queue", waiting, QUEUED), ("running", running, PLACED)):
        mine = sorted(job.row for job in state.jobs.values() if job.state == wanted and job.ends_as is None)
        if not np.array_equal(np.sort(rows), mine):
            found.append(f"{name}: {sorted(rows.tolist())} instead of {mine}")
    delayed = {job.id for job in state.jobs.values() if job.state == DELAYED and job.ends_as is None}
    if state.delayed != delayed:
        found.append(f"delayed: {sorted(state.delayed)} instead of {sorted(delayed)}")
    return found


def _attempts(state: ControllerState) -> list[str]:
    """At most one attempt of a job has been launched; every attempt belongs to a job that knows it."""
    found = []
    for job in state.jobs.values():
        launched = [token for token in job.alive if state.attempts[token].state != WAITS]
        if len(launched) > 1:
            found.append(f"{job.id} has {len(launched)} attempts at once")
        if job.token is not None and job.token != job.alive[-1]:
            found.append(f"{job.id} has an attempt after the one that holds its place")
    known = {token for job in state.jobs.values() for token in job.alive}
    return found + [f"{token} belongs to no job" for token in state.attempts if token not in known]
