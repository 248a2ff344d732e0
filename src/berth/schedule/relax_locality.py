"""Using devices that would idle: a job that waits for a near place may start spread, if that is cheaper.

A near place is expected once enough of what runs there has ended. Whether waiting for it costs more than running
spread is the policy's decision (`spread`).
"""

from __future__ import annotations

import math

import numpy as np

from berth import reproducible
from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import start_job
from berth.schedule.asking import next_to_spread
from berth.schedule.balance import best_shape, sensitive_to_imbalance, slowdown_by_imbalance
from berth.schedule.placement import exceeds_quota, find_place_for
from berth.schedule.policy import Hooks
from berth.schedule.queue import dequeue_at, gangs_wait, smallest_demand
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Array, World, places_of
from berth.schedule.reservation import (
    available_to_some,
    close_reservation,
    is_reserved_from,
    open_reservation,
    passes_reservation,
    reserve,
    running_by_end,
    soonest_place,
    sort_by_end,
    usable,
)
from berth.schedule.segments import begin_walk
from berth.schedule.start_waiting import imbalance_slowdown_in

_exp = kernel(reproducible.exp)


@indirect
def relax_locality(world: World, hooks: Hooks, now: float) -> None:
    """Starts waiting jobs, in order, spread over devices that no job took, where the policy agrees."""
    state, waiting = world.state[0], world.waiting
    if available_to_some(world) < smallest_demand(world) or not gangs_wait(world):
        return
    rows = running_by_end(world, now)
    state.search_epoch += 1
    begin_walk(world)
    i = state.queue_start
    while i < state.queue_stop and available_to_some(world) >= smallest_demand(world):
        i = next_to_spread(world, i, False)
        if i == state.queue_stop:
            break
        row = waiting[i]
        i += 1
        opens = passes_reservation(world, row)
        open_reservation(world, opens)
        started = start_relaxed(world, hooks, row, rows, opens, now)
        close_reservation(world, opens, row, started)
        if started:
            dequeue_at(world, i - 1)


@kernel
def start_relaxed(world: World, hooks: Hooks, row: int, rows: Array, open_: bool, now: float) -> bool:
    """Starts one job spread, or records what it waits for; `open_`: reserved devices are counted."""
    job = world.jobs[row]
    fixed = job.nearest_tier >= job.widest_tier and not sensitive_to_imbalance(world, job)
    fixed = fixed or job.shape_count > 1  # place and shape are chosen together: see shape_choice.py
    if job.gpus > world.state[0].free or fixed:
        return False
    device_type, tier, group = find_place_for(world, row, job.widest_tier, open_)
    if device_type < 0:
        return False
    job.imbalance_slowdown = imbalance_slowdown_in(world, row, device_type, group) if tier == 1 else 1.0
    if tier > job.nearest_tier:
        when, _, _, _ = soonest_place(world, row, job.nearest_tier, len(rows), now)
    else:
        when = balanced_from_s(world, row, rows)
    job.reason, job.waits_for_tier, job.until_s, job.explained_s = (
        ReasonCode.LOOKS_AHEAD,
        job.nearest_tier,
        when,
        now,
    )
    slowdown = job.slowdown[tier] * job.imbalance_slowdown
    job.saves_s = job.estimated_remaining_s * (slowdown - job.slowdown[job.nearest_tier])
    set_typical_service(world, row)
    if not hooks.spread(job, tier, when - now, now, world.params[0]):
        return False
    farther = tier > job.nearest_tier or job.imbalance_slowdown > 1.0
    reason = ReasonCode.CHEAPER_THAN_WAITING if farther else ReasonCode.NEAREST
    start_job(world, row, device_type, tier, group, now, reason)
    return True


@inlined
def set_typical_service(world: World, row: int) -> None:
    """Sets the typical service of recent jobs in a job's record, for `spread` to compare with."""
    world.jobs[row].typical_gpu_s = _exp(world.state[0].typical_log_gpu_s)


@kernel
def balanced_from_s(world: World, row: int, rows: Array) -> float:
    """When some rack is expected to have a shape that halves what the best current one costs a gang."""
    job = world.jobs[row]
    limit = 1.0 + (job.imbalance_slowdown - 1.0) / 2.0
    free = np.zeros(len(world.hosts), np.int64)
    for at in range(len(world.hosts)):
        if not is_reserved_from(world, row, world.hosts[at]):
            free[at] = world.hosts[at].free + world.hosts[at].masked
    for i in range(len(rows)):
        for place in places_of(world, world.jobs[rows[i]].first_place):
            host = world.hosts[place.host]
            if not host.down and usable(world, row, host):
                free[place.host] += place.count
                x, _, _ = best_shape(same_rack_and_type(world, free, place.host), job.gpus)
                if x < 2.0 and slowdown_by_imbalance(job, x) <= limit:
                    return world.jobs[rows[i]].expected_end_s
    return math.inf


@kernel
def same_rack_and_type(world: World, free: Array, at: int) -> Array:
    """The entries of `free` of hosts in the same rack and of the same device type as one host."""
    host = world.hosts[at]
    rack = world.groups[1, host.group[1]]
    found = np.zeros(rack.stop - rack.start, np.int64)
    for k in range(rack.start, rack.stop):
        if world.hosts[k].device_type == host.device_type:
            found[k - rack.start] = free[k]
    return found


@indirect
def reserve_for_longest_waiting(world: World, hooks: Hooks, now: float) -> None:
    """Starts the job that has waited longest, once over the limit, or reserves a place for it.

    With `reserve_in_order` it is the first in order of those over the limit. Higher priorities may still use the place.
    """
    state, rules, waiting = world.state[0], world.rules[0], world.waiting
    reservation = world.reservation[0]
    longest, oldest, at = now - rules.reserve_after_s, now, -1
    if reservation.oldest_s >= longest:
        return
    for i in range(state.queue_start, state.queue_stop):
        job = world.jobs[waiting[i]]
        oldest = min(oldest, job.queued_since_s)
        if job.queued_since_s < longest and not exceeds_quota(world, waiting[i]):
            longest, at = job.queued_since_s, i
            if rules.reserve_in_order:
                break
    if at < 0:
        reservation.oldest_s = oldest
        return
    row = waiting[at]
    job = world.jobs[row]
    state.search_epoch += 1
    device_type, tier, group = find_place_for(world, row, job.nearest_tier, False)
    if device_type >= 0:
        start_job(world, row, device_type, tier, group, now, ReasonCode.HELD_FOR_IT)
        dequeue_at(world, at)
        return
    running = sort_by_end(world, now)
    when, group, device_type, spare = soonest_place(world, row, job.nearest_tier, running, now)
    if group >= 0 and when - now <= rules.reserve_share * (now - job.queued_since_s):
        reserve(world, row, job.nearest_tier, group, device_type, when, spare, job.priority + 1)
