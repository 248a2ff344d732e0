"""Preemption for gain: running jobs are evicted where another gains more than that costs them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import evict, requeue, start_job
from berth.schedule.claims import reclaim, return_devices
from berth.schedule.placement import accepts_device_type, device_types_of, exceeds_quota, find_place_for
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, restore_cost_s
from berth.schedule.queue import dequeue_at, merge_rows, order_of
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import BOUND, Array, World, places_of
from berth.schedule.reservation import (
    available_to,
    close_reservation,
    is_reserved_from,
    may_use_reserved,
    open_reservation,
    suffices,
)
from berth.schedule.shapes import has_devices, holds_tied

_MAX_JOBS = 4  # blocked jobs for which victims are looked for in one pass


@indirect
def preempt_for_gain(world: World, hooks: Hooks, now: float) -> float:
    """For the first few blocked jobs: evicts the cheapest jobs inside one group, if it pays.

    Returns when a job that is protected from eviction now may be evicted, if that would pay.
    """
    state, margin = world.state[0], world.rules[0].gain_margin
    tried, i, wake = 0, state.queue_start, math.inf
    while i < state.queue_stop and tried < _MAX_JOBS:
        row = world.waiting[i]
        job = world.jobs[row]
        here = job.slowdown[min(job.widest_tier, job.nearest_tier + 1)]
        gain = hooks.gain(job, here, job.slowdown[job.nearest_tier], now, world.params[0])
        i += 1
        if gain <= margin * restore_cost_s(world, job.gpus) or exceeds_quota(world, row):
            continue
        tried += 1
        opens = may_use_reserved(world, row)
        open_reservation(world, opens)
        started = start_on_leftover(world, i - 1, now) or start_by_eviction(world, hooks, i - 1, gain, now)
        close_reservation(world, opens, row, started)
        if started:
            i = state.queue_start  # the victims are in the queue now
        else:
            wake = min(wake, next_evictable_s(world, hooks, row, gain, now))
    return wake


@kernel
def next_evictable_s(world: World, hooks: Hooks, row: int, gain: float, now: float) -> float:
    """When the first protected job that it would pay to evict for `row` loses its protection; cost as of now."""
    job, margin = world.jobs[row], world.rules[0].gain_margin
    wake = math.inf
    for i in range(world.state[0].running):
        victim = world.jobs[world.running[i]]
        until_s = protected_until_s(world, victim)
        if not now < until_s < wake or not victim.preemptible:
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
def start_by_eviction(world: World, hooks: Hooks, at: int, gain: float, now: float) -> bool:
    """Starts a job by evictions among devices of one type, the first for which it pays."""
    job = world.jobs[world.waiting[at]]
    if job.vector:
        return evict_for_shape(world, hooks, at, gain, now)
    for device_type in device_types_of(world, job):
        if accepts_device_type(job, device_type) and evict_on_type(world, hooks, at, device_type, gain, now):
            return True
    return False


@kernel
def evict_on_type(world: World, hooks: Hooks, at: int, device_type: int, gain: float, now: float) -> bool:
    """Finds the cheapest victims inside one group of the job's nearest tier, and evicts them if it pays."""
    row = world.waiting[at]
    job = world.jobs[row]
    victims, costs = eviction_candidates(world, hooks, row, device_type, now)
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
def evict_for_shape(world: World, hooks: Hooks, at: int, gain: float, now: float) -> bool:
    """The same for a job with parts: all devices of its shape come free inside one group, or nothing changes."""
    row = world.waiting[at]
    job = world.jobs[row]
    shape = world.shapes[job.shape]
    victims, costs = eviction_candidates(world, hooks, row, -1, now)
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
    world: World, hooks: Hooks, row: int, device_type: int, now: float
) -> tuple[Array, Array]:
    """Running jobs that may be evicted for `row`, with the cost of each: cheapest, or last in order, first.

    They hold devices of the type; -1: of any that the job needs.
    """
    state, job = world.state[0], world.jobs[row]
    rows, costs = np.empty(state.running, np.int64), np.empty(state.running)
    ranks, count = np.zeros(state.running, BOUND), 0
    for i in range(state.running):
        victim = world.jobs[world.running[i]]
        if not victim.preemptible or now < protected_until_s(world, victim):
            continue
        if victim.priority > job.priority or victim.started_s == now:
            continue
        if not holds_type(world, victim, job.device_type_mask if device_type < 0 else 1 << device_type):
            continue
        advance_progress(victim, now)
        cost = hooks.cost(victim, job, now, world.params[0]) + restore_cost_s(world, victim.gpus)
        if cost < math.inf:
            rows[count], costs[count] = world.running[i], cost
            ranks[count].order_key, ranks[count].id = cost, count
            if world.rules[0].victims_by_order:
                ranks[count].order_key = -order_of(world, hooks, rows[count], now)
                ranks[count].priority = -victim.priority
            count += 1
    order = np.arange(count)
    merge_rows(ranks, order)
    victims, their_costs = np.empty(count, np.int64), np.empty(count)
    for k in range(count):
        victims[k], their_costs[k] = rows[order[k]], costs[order[k]]
    return victims, their_costs


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
    job = world.jobs[row]
    size = world.groups.shape[1]
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
