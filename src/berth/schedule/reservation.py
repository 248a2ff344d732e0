"""Reservations: when a group will be free for a gang, and keeping it free until then, within one pass.

A running job is expected to end when its remaining work is done at its current speed. The free devices that
are reserved are masked: they leave the counts of free devices for the rest of the pass. A job that may use them
opens the reservation (`open_reservation`), searches and starts, and closes it again (`close_reservation`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.claims import count_devices, reclaim, return_devices
from berth.schedule.placement import accepts_device_type
from berth.schedule.progress import advance_progress
from berth.schedule.queue import precedes
from berth.schedule.records import Array, JobStatus, World, places_of
from berth.schedule.rules import Preempt

EVERY_JOB = 1 << 40  # above every priority
A_MOMENT_S = 1e-6  # times closer together than this are the same moment, but for rounding


@inlined
def running_by_end(world: World, now: float) -> Array:
    """Running rows by expected end, soonest first; `expected_end_s` of each is up to date."""
    return world.ending[: sort_by_end(world, now)]


@deferred
def sort_by_end(world: World, now: float) -> int:
    """Sorts `World.ending`; returns how many of the jobs in it run."""
    ending, state = world.ending, world.state[0]
    ends, count = np.empty(state.ending), 0  # side by side: records lie far apart
    for i in range(state.ending):
        job = world.jobs[ending[i]]
        if job.state != JobStatus.RUNNING:
            job.in_ending_list = 0
            continue
        advance_progress(job, now)
        job.expected_end_s = max(now, job.restored_at_s) + job.estimated_remaining_s / job.speed
        row, end, k = ending[i], job.expected_end_s, count - 1
        while k >= 0 and ends[k] > end:
            ending[k + 1], ends[k + 1] = ending[k], ends[k]
            k -= 1
        ending[k + 1], ends[k + 1] = row, end
        count += 1
    state.ending = count
    return count


@deferred
def soonest_place(world: World, row: int, tier: int, running: int, now: float) -> tuple[float, int, int, int]:
    """(time, group, device type, devices to spare): when and where a tier first holds the gang; (inf, ...): never.

    The first `running` rows of `World.ending` are those of running jobs by their expected end.
    Devices reserved for another job are not counted: how long it will run there is unknown.
    """
    if world.jobs[row].vector:
        when, group = soonest_for_need(world, row, world.jobs[row].shape, tier, running, now)
        return when, group, 0, 0
    job, device_types = world.jobs[row], world.state[0].device_types
    free = np.zeros((world.groups.shape[1], device_types), np.int64)  # a gang's devices are all of one type
    best, best_type, best_free = -1, -1, 1 << 30
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if usable(world, row, host):
            free[host.group[tier], host.device_type] += host.free + host.masked
    for number in range(len(free)):
        for device_type in range(device_types):
            if job.gpus <= free[number, device_type] < best_free:
                best, best_type, best_free = number, device_type, free[number, device_type]
    if best >= 0:
        return now, best, best_type, best_free - job.gpus
    return first_to_hold(world, row, tier, world.ending[:running], free)


@kernel
def first_to_hold(world: World, row: int, tier: int, rows: Array, idle: Array) -> tuple[float, int, int, int]:
    """The same for a gang that no group holds yet; `idle`: devices by group and type that it may use.

    All that ends at the same moment is counted. Of groups that hold the gang from that moment on, the one is taken
    that keeps fewest idle devices from other jobs: those that the gang will not leave to spare.
    """
    job, device_types = world.jobs[row], world.state[0].device_types
    free, when = idle.copy(), math.inf
    reached, count = np.empty(free.size, np.int64), 0
    for i in range(len(rows)):
        end_s = world.jobs[rows[i]].expected_end_s
        if end_s > when + A_MOMENT_S:
            break
        if world.jobs[rows[i]].returned:
            continue
        for place in places_of(world, world.jobs[rows[i]].first_place):
            host = world.hosts[place.host]
            if not host.down and usable(world, row, host):
                number, before = host.group[tier], free[host.group[tier], host.device_type]
                free[number, host.device_type] = before + place.count
                if before < job.gpus <= before + place.count:
                    reached[count], when = number * device_types + host.device_type, min(when, end_s)
                    count += 1
    best, best_type, fewest = -1, -1, 1 << 30
    for i in range(count):
        number, device_type = reached[i] // device_types, reached[i] % device_types
        kept = max(0, idle[number, device_type] - (free[number, device_type] - job.gpus))
        if kept < fewest:
            best, best_type, fewest = number, device_type, kept
    return when, best, best_type, free[best, best_type] - job.gpus if best >= 0 else 0


@deferred
def soonest_for_need(
    world: World, row: int, number: int, tier: int, running: int, now: float
) -> tuple[float, int]:
    """(time, group): when and where a tier first has the devices of a shape; (inf, -1): never.

    Devices that jobs ahead in this pass wait for (`promised`) must have come free beside.
    """
    promised, device_types = world.shape_choice[0].promised, world.state[0].device_types
    need, rows = world.shapes[number].need, world.ending[:running]
    free = np.zeros((world.groups.shape[1], device_types), np.int64)
    total = np.zeros(device_types, np.int64)
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if need[host.device_type] > 0 and not is_reserved_from(world, row, host):
            free[host.group[tier], host.device_type] += host.free + host.masked
            total[host.device_type] += host.free + host.masked
    best = -1
    for at in range(len(free)):
        if best < 0 and suffices(free[at], need):
            best = at
    if best >= 0 and beside_promised(total, need, promised):
        return now, best
    for i in range(len(rows)):
        job = world.jobs[rows[i]]
        if job.returned:
            continue
        for place in places_of(world, job.first_place):
            host = world.hosts[place.host]
            if need[host.device_type] == 0 or host.down or is_reserved_from(world, row, host):
                continue
            at = host.group[tier]
            free[at, host.device_type] += place.count
            total[host.device_type] += place.count
            if best < 0 and suffices(free[at], need):
                best = at
        if best >= 0 and beside_promised(total, need, promised):
            return job.expected_end_s, best
    return math.inf, -1


@inlined
def suffices(free: Array, need: Array) -> bool:
    """Whether free devices by type are enough."""
    enough = True
    for device_type in range(len(free)):
        enough = enough and free[device_type] >= need[device_type]
    return enough


@inlined
def beside_promised(total: Array, need: Array, promised: Array) -> bool:
    """Whether free devices by type are enough beside those that other jobs wait for."""
    enough = True
    for device_type in range(len(total)):
        if need[device_type] > 0:
            enough = enough and total[device_type] >= need[device_type] + promised[device_type]
    return enough


@inlined
def usable(world: World, row: int, host: Any) -> bool:
    """Whether a job accepts a host's devices and they are not reserved from it."""
    return accepts_device_type(world.jobs[row], host.device_type) and not is_reserved_from(world, row, host)


@inlined
def available_to(world: World, row: int, host: Any, device_type: int) -> bool:
    """Whether a host that is up has devices of a type that are not reserved from a job."""
    return not host.down and host.device_type == device_type and not is_reserved_from(world, row, host)


@inlined
def is_reserved_from(world: World, row: int, host: Any) -> bool:
    """Whether a host is part of what is reserved for another job."""
    reservation = world.reservation[0]
    if reservation.holder < 0 or reservation.holder == row or passes_reservation(world, row):
        return False
    reserved = host.group[reservation.tier] == reservation.group
    return reserved and reservation.device_type_mask >> host.device_type & 1 == 1


@inlined
def passes_reservation(world: World, row: int) -> bool:
    """Whether a group is reserved, but not from this job.

    It is reserved from lower priorities only; and where order preempts, a job of lower priority that can be preempted
    delays no other: it gives way when the other job can start.
    """
    reservation, job = world.reservation[0], world.jobs[row]
    if reservation.holder < 0:
        return False
    gives_way = job.preemptible and world.rules[0].preempt == Preempt.BY_ORDER
    return job.priority >= reservation.below_priority or (
        gives_way and job.priority < world.jobs[reservation.holder].priority
    )


@inlined
def may_use_reserved(world: World, row: int) -> bool:
    """Whether a job may use the reserved devices: it is for this job, or not from it."""
    return world.reservation[0].holder == row or passes_reservation(world, row)


@inlined
def available_to_some(world: World) -> int:
    """Free devices that at least one waiting job may take: all but those reserved from every other job."""
    state, reservation = world.state[0], world.reservation[0]
    return state.free + (state.masked if reservation.below_priority < EVERY_JOB else 0)


@kernel
def reserve(
    world: World, row: int, tier: int, group: int, device_type: int, until_s: float, spare: int, below: int
) -> None:
    """Reserves a group's devices of one type from other jobs of a priority below this; EVERY_JOB: from all others.

    For a job with parts all types that it needs are reserved.
    """
    state, reservation, job = world.state[0], world.reservation[0], world.jobs[row]
    reservation.holder, reservation.last_holder = row, row
    reservation.tier, reservation.group = tier, group
    reservation.device_type_mask = job.device_type_mask if job.vector else 1 << device_type
    reservation.until_s, reservation.spare, reservation.below_priority = until_s, spare, below
    for k in range(state.device_types):
        for at in range(world.groups.shape[0]):
            state.most_free[1, k, at] = state.most_free[0, k, at]
    set_mask(world, True)


@deferred
def reserve_soonest(world: World, row: int, tier: int, below: int, now: float) -> None:
    """Reserves the place where a job can start soonest; where order preempts, later jobs give way to it."""
    rows = running_by_end(world, now)
    gives_way = np.zeros(len(rows), np.bool_)
    if world.rules[0].preempt == Preempt.BY_ORDER:
        for i in range(len(rows)):
            job = world.jobs[rows[i]]
            if job.preemptible and not job.returned and precedes(world.jobs[row], job):
                gives_way[i], job.returned = True, 1
                return_devices(world, job.first_place)
    until_s, group, device_type, spare = soonest_place(world, row, tier, len(rows), now)
    for i in range(len(rows)):
        if gives_way[i]:
            world.jobs[rows[i]].returned = 0
            reclaim(world, world.jobs[rows[i]].first_place)
    if group >= 0:
        reserve(world, row, tier, group, device_type, until_s, spare, below)


@inlined
def open_reservation(world: World, opens: bool) -> None:
    """Unmasks the reserved devices for a job that may use them; close the reservation afterwards."""
    if opens:
        set_mask(world, False)


@inlined
def close_reservation(world: World, opens: bool, row: int, started: bool) -> None:
    """Masks what is still free of the reserved group; where its own job has started, the reservation ends."""
    if opens and started and world.reservation[0].holder == row:
        world.reservation[0].holder = -1
    elif opens:
        set_mask(world, True)


@deferred
def set_mask(world: World, masked: bool) -> None:
    """Takes the reserved devices that are free out of the counts, or puts them back."""
    state, reservation = world.state[0], world.reservation[0]
    group = world.groups[reservation.tier, reservation.group]
    for at in range(group.start, group.stop):
        host = world.hosts[at]
        if reservation.device_type_mask >> host.device_type & 1:
            devices = host.free if masked else -host.masked
            count_devices(world, at, devices)
            host.masked += devices
            state.masked += devices


@kernel
def cancel_reservation(world: World) -> None:
    """Ends the reservation, if there is one."""
    if world.reservation[0].holder >= 0:
        set_mask(world, False)
        world.reservation[0].holder = -1
