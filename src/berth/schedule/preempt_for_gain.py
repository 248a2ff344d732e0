"""Preemption for gain: running jobs are evicted where another gains more than that costs them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import evict, requeue, start_job
from berth.schedule.asking import least_gain_s, nearest_gain_s, next_to_gain
from berth.schedule.claims import reclaim, return_devices
from berth.schedule.placement import accepts_device_type, device_types_of, exceeds_quota, find_place_for
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, restore_cost_s
from berth.schedule.queue import dequeue_at, order_of, picked, stable_order
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Array, World, places_of
from berth.schedule.reservation import (
    available_to,
    close_reservation,
    is_reserved_from,
    may_use_reserved,
    open_reservation,
    suffices,
)
from berth.schedule.segments import begin_walk
from berth.schedule.shapes import has_devices, holds_tied

_MAX_JOBS = 4  # blocked jobs for which victims are looked for in one pass


@indirect
def preempt_for_gain(world: World, hooks: Hooks, now: float) -> float:
    """For the first few blocked jobs: evicts the cheapest jobs inside one group, if it pays.

    Returns when a job that is protected from eviction now may be evicted, if that would pay.
    """
    state = world.state[0]
    tried, i, wake, changed = 0, state.queue_start, math.inf, True
    evictable = protected = np.empty(0, np.int32)
    begin_walk(world)
    while tried < _MAX_JOBS:
        i = next_to_gain(world, hooks, i, now)
        if i == state.queue_stop:
            break
        row = world.waiting[i]
        gain = nearest_gain_s(world, hooks, row, now)
        i += 1
        if gain <= least_gain_s(world, row) or exceeds_quota(world, row):
            continue
        tried += 1
        if changed:
            evictable, protected = by_protection(world, now)
            state.ranked = -1
        opens = may_use_reserved(world, row)
        open_reservation(world, opens)
        changed = start_on_leftover(world, i - 1, now)
        changed = changed or start_by_eviction(world, hooks, i - 1, gain, evictable, now)
        close_reservation(world, opens, row, changed)
        if changed:
            begin_walk(world)
            i = state.queue_start  # the victims are in the queue now
        else:
            wake = min(wake, next_evictable_s(world, hooks, row, gain, protected, now))
    return wake


@kernel
def by_protection(world: World, now: float) -> tuple[Array, Array]:
    """The running jobs that can be preempted: those that may be evicted now, and those that are protected still."""
    running = world.state[0].running
    evictable, protected = np.empty(running, np.int32), np.empty(running, np.int32)
    count, left = 0, 0
    for i in range(running):
        row = world.running[i]
        victim = world.jobs[row]
        if not victim.preemptible:
            continue
        if now < protected_until_s(world, victim):
            protected[left] = row
            left += 1
        elif victim.started_s != now:
            evictable[count] = row
            count += 1
    return evictable[:count], protected[:left]


@kernel
def next_evictable_s(
    world: World, hooks: Hooks, row: int, gain: float, protected: Array, now: float
) -> float:
    """When the first protected job that it would pay to evict for `row` loses its protection; cost as of now."""
    job, margin = world.jobs[row], world.rules[0].gain_margin
    wake = math.inf
    for candidate in protected:
        victim = world.jobs[candidate]
        until_s = protected_until_s(world, victim)
        if until_s >= wake:
            continue
        advance_progress(victim, now)
        cost = hooks.cost(victim, job, now, world.params[0]) + restore_cost_s(world, victim.gpus)
        device_type = world.hosts[world.places[victim.first_place].host].device_type
        accepts = accepts_device_type(job, device_type) if not victim.vector else True
        if gain > margin * cost and accepts:
            wake = until_s
    return wake


@inlined
def protected_until_s(world: World, victim: Any) -> float:
    """Until when a job may not be evicted: it has not worked for long, or was evicted recently.

    Restoring does not count as work: otherwise gangs could evict each other forever and make no progress.
    """
    rules = world.rules[0]
    until_s = max(victim.started_s, victim.restored_at_s) + rules.min_run_s
    if victim.evictions > 0:
        return max(until_s, victim.last_eviction_s + rules.eviction_interval_s)
    return until_s


@kernel
def start_on_leftover(world: World, at: int, now: float) -> bool:
    """Starts a job on devices that an earlier eviction of this pass has freed beyond what was needed."""
    row = world.waiting[at]
    world.state[0].search_epoch += 1
    device_type, tier, group = find_place_for(world, row, world.jobs[row].nearest_tier, False)
    if device_type < 0:
        return False
    start_job(world, row, device_type, tier, group, now, ReasonCode.NEAREST)
    dequeue_at(world, at)
    return True


@kernel
def start_by_eviction(world: World, hooks: Hooks, at: int, gain: float, evictable: Array, now: float) -> bool:
    """Starts a job by evictions among devices of one type, the first for which it pays."""
    job = world.jobs[world.waiting[at]]
    if job.vector:
        return evict_for_shape(world, hooks, at, gain, evictable, now)
    for device_type in device_types_of(world, job):
        accepts = accepts_device_type(job, device_type)
        if accepts and evict_on_type(world, hooks, at, device_type, gain, evictable, now):
            return True
    return False


@kernel
def evict_on_type(
    world: World, hooks: Hooks, at: int, device_type: int, gain: float, evictable: Array, now: float
) -> bool:
    """Finds the cheapest victims inside one group of the job's nearest tier, and evicts them if it pays."""
    row = world.waiting[at]
    job = world.jobs[row]
    victims, costs = eviction_candidates(world, hooks, row, device_type, evictable, now)
    group, considered, cost = cheapest_group(world, row, device_type, victims, costs)
    if group < 0 or exceeds_quota(world, row):
        return False
    own_cost = restore_cost_s(world, job.gpus) * (job.first_start_s >= 0)
    if gain <= world.rules[0].gain_margin * (cost + own_cost):
        return False
    evicted = np.empty(considered, np.int64)
    count = 0
    for k in range(considered):
        if holds_devices_in(world, row, victims[k], job.nearest_tier, group):
            return_devices(world, world.jobs[victims[k]].first_place)
            evict(world, victims[k], ReasonCode.MADE_WAY)
            evicted[count] = victims[k]
            count += 1
    start_job(world, row, device_type, job.nearest_tier, group, now, ReasonCode.MADE_ROOM)
    job.saves_s = gain
    dequeue_at(world, at)
    for k in range(count):
        requeue(world, hooks, evicted[k], now, ReasonCode.MADE_WAY)
    return True


@kernel
def evict_for_shape(world: World, hooks: Hooks, at: int, gain: float, evictable: Array, now: float) -> bool:
    """The same for a job with parts: all devices of its shape come free inside one group, or nothing changes."""
    row = world.waiting[at]
    job = world.jobs[row]
    shape = world.shapes[job.shape]
    victims, costs = eviction_candidates(world, hooks, row, -1, evictable, now)
    group, considered, cost = cheapest_group_for_need(world, row, victims, costs)
    own_cost = restore_cost_s(world, job.gpus) * (job.first_start_s >= 0)
    if group < 0 or exceeds_quota(world, row) or gain <= world.rules[0].gain_margin * (cost + own_cost):
        return False
    evicted, count = np.empty(considered, np.int64), 0
    for k in range(considered):
        if holds_devices_in(world, row, victims[k], job.nearest_tier, group):
            return_devices(world, world.jobs[victims[k]].first_place)
            evicted[count] = victims[k]
            count += 1
    free = world.groups[job.nearest_tier, group].free
    fits = has_devices(free, shape.need) and holds_tied(world, shape, job.nearest_tier, group)
    for k in range(count):
        if fits:
            evict(world, evicted[k], ReasonCode.MADE_WAY)
        else:
            reclaim(world, world.jobs[evicted[k]].first_place)
    if not fits:
        return False
    start_job(world, row, 0, job.nearest_tier, group, now, ReasonCode.MADE_ROOM)
    job.saves_s = gain
    dequeue_at(world, at)
    for k in range(count):
        requeue(world, hooks, evicted[k], now, ReasonCode.MADE_WAY)
    return True


@kernel
def cheapest_group_for_need(world: World, row: int, victims: Array, costs: Array) -> tuple[int, int, float]:
    """(group, number of victims to consider, their cost) of the group that has all types first; group -1: none."""
    job, device_types = world.jobs[row], world.state[0].device_types
    need = world.shapes[job.shape].need
    free, total = np.zeros((world.groups.shape[1], device_types), np.int64), np.zeros(world.groups.shape[1])
    charged = np.full(world.groups.shape[1], -1)  # the last victim whose cost is counted in each group
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if not is_reserved_from(world, row, host):
            free[host.group[job.nearest_tier], host.device_type] += host.free
    for k in range(len(victims)):
        for place in places_of(world, world.jobs[victims[k]].first_place):
            host = world.hosts[place.host]
            number = host.group[job.nearest_tier]
            if host.down or is_reserved_from(world, row, host):
                continue
            free[number, host.device_type] += place.count
            if charged[number] != k:
                total[number] += costs[k]
                charged[number] = k
            if suffices(free[number], need):
                return number, k + 1, total[number]
    return -1, 0, 0.0


@kernel
def eviction_candidates(
    world: World, hooks: Hooks, row: int, device_type: int, evictable: Array, now: float
) -> tuple[Array, Array]:
    """Running jobs that may be evicted for `row`, with the cost of each: cheapest, or last in order, first.

    They hold devices of the type; -1: of any that the job needs.
    """
    job, count = world.jobs[row], 0
    types = job.device_type_mask if device_type < 0 else 1 << device_type
    ranked = ranked_victims(world, hooks, job.priority, types, evictable, now)
    rows, costs = np.empty(len(ranked), np.int64), np.empty(len(ranked))
    for candidate in ranked:
        victim = world.jobs[candidate]
        cost = hooks.cost(victim, job, now, world.params[0]) + restore_cost_s(world, victim.gpus)
        if cost < math.inf:
            rows[count], costs[count] = candidate, cost
            count += 1
    if world.rules[0].victims_by_order:
        return rows[:count], costs[:count]
    order = stable_order(costs[:count])
    return picked(rows, order), picked(costs, order)


@kernel
def ranked_victims(
    world: World, hooks: Hooks, priority: int, types: int, evictable: Array, now: float
) -> Array:
    """Those of the evictable jobs that hold devices of some types and have no higher priority; last in order first.

    They are the same for jobs of one priority and type, until one of them starts. Where cost decides, in any order.
    """
    state, count = world.state[0], 0
    if state.ranked >= 0 and state.ranked_priority == priority and state.ranked_types == types:
        return world.victims[: state.ranked]
    rows, priorities = np.empty(len(evictable), np.int64), np.zeros(len(evictable))
    keys = np.zeros(len(evictable))
    for row in evictable:
        victim = world.jobs[row]
        if victim.priority > priority or not holds_type(world, victim, types):
            continue
        advance_progress(victim, now)
        rows[count] = row
        if world.rules[0].victims_by_order:
            keys[count], priorities[count] = -order_of(world, hooks, row, now), victim.priority
        count += 1
    order = stable_order(keys[:count])
    ranked = picked(rows, picked(order, stable_order(picked(priorities, order))))
    for k in range(count):
        world.victims[k] = ranked[k]
    state.ranked, state.ranked_priority, state.ranked_types = count, priority, types
    return world.victims[:count]


@inlined
def holds_type(world: World, job: Any, types: int) -> bool:
    """Whether a running job holds devices of one of these types, one bit each."""
    if not job.vector:
        return types >> world.hosts[world.places[job.first_place].host].device_type & 1 == 1
    held = False
    for place in places_of(world, job.first_place):
        held |= types >> world.hosts[place.host].device_type & 1 == 1
    return held


@kernel
def cheapest_group(
    world: World, row: int, device_type: int, victims: Array, costs: Array
) -> tuple[int, int, float]:
    """(group, number of victims to consider, their cost) of the group that has room first; group -1: none."""
    job, size = world.jobs[row], world.groups.shape[1]
    free, total = np.zeros(size, np.int64), np.zeros(size)
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if host.device_type == device_type and not is_reserved_from(world, row, host):
            free[host.group[job.nearest_tier]] += host.free
    for k in range(len(victims)):
        last = -1
        for place in places_of(world, world.jobs[victims[k]].first_place):
            host = world.hosts[place.host]
            number = host.group[job.nearest_tier]
            if available_to(world, row, host, device_type):
                free[number] += place.count
                if number != last:
                    total[number] += costs[k]
                    last = number
                if free[number] >= job.gpus:
                    return number, k + 1, total[number]
    return -1, 0, 0.0


@kernel
def holds_devices_in(world: World, row: int, victim: int, tier: int, group: int) -> bool:
    """Whether a running job holds devices inside a group that `row` could use."""
    for place in places_of(world, world.jobs[victim].first_place):
        host = world.hosts[place.host]
        if host.group[tier] == group and not host.down and not is_reserved_from(world, row, host):
            return True
    return False
