"""Preemption for gain: running jobs are evicted where another gains more than that costs them.

Which jobs those are, and where they make room, is found in victims.py.
"""

from __future__ import annotations

import math

import numpy as np

from berth.native.kernels import indirect, kernel
from berth.schedule.allocation import evict, requeue, start_job
from berth.schedule.asking import least_gain_s, nearest_gain_s, next_to_gain
from berth.schedule.claims import reclaim, return_devices
from berth.schedule.placement import accepts_device_type, device_types_of, exceeds_quota, find_place_for
from berth.schedule.policy import Hooks
from berth.schedule.progress import restore_cost_s
from berth.schedule.queue import dequeue_at
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import World, places_of
from berth.schedule.reservation import (
    close_reservation,
    is_reserved_from,
    may_use_reserved,
    open_reservation,
    suffices,
)
from berth.schedule.segments import begin_walk
from berth.schedule.shapes import has_devices, holds_tied
from berth.schedule.victims import (
    cheapest_group,
    cost_of,
    holds_devices_in,
    least_cost_s,
    protected_cost_s,
    rank_victims,
)

_MAX_JOBS = 4  # blocked jobs for which victims are looked for in one pass


@indirect
def preempt_for_gain(world: World, hooks: Hooks, now: float) -> float:
    """For the first few blocked jobs: evicts the cheapest jobs inside one group, if it pays.

    Returns when a job that is protected from eviction now may be evicted, if that would pay.
    """
    state, search = world.state[0], world.victim_search[0]
    tried, i, wake = 0, state.queue_start, math.inf
    search.ranked = -1
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
        opens = may_use_reserved(world, row)
        open_reservation(world, opens)
        changed = start_on_leftover(world, i - 1, now)
        changed = changed or start_by_eviction(world, hooks, i - 1, gain, now)
        close_reservation(world, opens, row, changed)
        if changed:
            begin_walk(world)
            search.ranked = -1
            i = state.queue_start  # the victims are in the queue now
        else:
            wake = min(wake, next_evictable_s(world, hooks, row, gain, now))
    return wake


@kernel
def next_evictable_s(world: World, hooks: Hooks, row: int, gain: float, now: float) -> float:
    """When the first protected job that it would pay to evict for `row` loses its protection; cost as of now."""
    job, search, margin = world.jobs[row], world.victim_search[0], world.rules[0].gain_margin
    wake = math.inf
    if search.ranked < 0:  # no device type that the job accepts
        return wake
    for one in world.threatened[search.ranked : search.threatened]:
        if one.until_s <= now or one.until_s >= wake or gain <= margin * least_cost_s(one):
            continue
        if gain > margin * protected_cost_s(world, hooks, row, one, now):
            victim = world.jobs[one.row]
            device_type = world.hosts[world.places[victim.first_place].host].device_type
            if victim.vector or accepts_device_type(job, device_type):
                wake = one.until_s
    return wake


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
        accepts = accepts_device_type(job, device_type)
        if accepts and evict_on_type(world, hooks, at, device_type, gain, now):
            return True
    return False


@kernel
def evict_on_type(world: World, hooks: Hooks, at: int, device_type: int, gain: float, now: float) -> bool:
    """Finds the cheapest victims inside one group of the job's nearest tier, and evicts them if it pays."""
    row = world.waiting[at]
    job = world.jobs[row]
    rank_victims(world, hooks, row, 1 << device_type, now)
    group, considered, cost = cheapest_group(world, hooks, row, device_type, now)
    if group < 0 or exceeds_quota(world, row):
        return False
    own_cost = restore_cost_s(world, job.gpus) * (job.first_start_s >= 0)
    if gain <= world.rules[0].gain_margin * (cost + own_cost):
        return False
    evicted = np.empty(considered, np.int64)
    count = 0
    for k in range(considered):
        victim = world.threatened[k].row
        if world.threatened[k].evictable and holds_devices_in(world, row, victim, job.nearest_tier, group):
            return_devices(world, world.jobs[victim].first_place)
            evict(world, victim, ReasonCode.MADE_WAY)
            evicted[count] = victim
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
    rank_victims(world, hooks, row, job.device_type_mask, now)
    group, considered, cost = cheapest_group_for_need(world, hooks, row, now)
    own_cost = restore_cost_s(world, job.gpus) * (job.first_start_s >= 0)
    if group < 0 or exceeds_quota(world, row) or gain <= world.rules[0].gain_margin * (cost + own_cost):
        return False
    evicted, count = np.empty(considered, np.int64), 0
    for k in range(considered):
        victim = world.threatened[k].row
        if world.threatened[k].evictable and holds_devices_in(world, row, victim, job.nearest_tier, group):
            return_devices(world, world.jobs[victim].first_place)
            evicted[count] = victim
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
def cheapest_group_for_need(world: World, hooks: Hooks, row: int, now: float) -> tuple[int, int, float]:
    """(group, number of victims to consider, their cost) of the group that has all types first; group -1: none."""
    job, device_types = world.jobs[row], world.state[0].device_types
    need = world.shapes[job.shape].need
    free, total = np.zeros((world.groups.shape[1], device_types), np.int64), np.zeros(world.groups.shape[1])
    charged = np.full(world.groups.shape[1], -1)  # the last victim whose cost is counted in each group
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if not is_reserved_from(world, row, host):
            free[host.group[job.nearest_tier], host.device_type] += host.free
    for k in range(world.victim_search[0].ranked):
        cost = cost_of(world, hooks, row, world.threatened[k], now)
        if cost == math.inf:
            continue
        for place in places_of(world, world.jobs[world.threatened[k].row].first_place):
            host = world.hosts[place.host]
            number = host.group[job.nearest_tier]
            if host.down or is_reserved_from(world, row, host):
                continue
            free[number, host.device_type] += place.count
            if charged[number] != k:
                total[number] += cost
                charged[number] = k
            if suffices(free[number], need):
                return number, k + 1, total[number]
    return -1, 0, 0.0
