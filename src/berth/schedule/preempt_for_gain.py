"""Preemption for gain: running jobs are evicted where another gains more than that costs them.

The running jobs that can be preempted are kept in `World.threatened` from one look to the next: first those that may be
evicted, in the order in which they are considered, then the others. They are nearly in order at the next look, and
what a victim costs is asked only as far as victims are considered.
"""

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
from berth.schedule.queue import dequeue_at, order_of
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
from berth.schedule.threatened import copy_threatened

_MAX_JOBS = 4  # blocked jobs for which victims are looked for in one pass
_LAST = 2**31 - 1  # the priority of those that may not be evicted: behind all others
_SHIFTS_PER_JOB = 8  # insertion sort gives up beyond this average


@indirect
def preempt_for_gain(world: World, hooks: Hooks, now: float) -> float:
    """For the first few blocked jobs: evicts the cheapest jobs inside one group, if it pays.

    Returns when a job that is protected from eviction now may be evicted, if that would pay.
    """
    state = world.state[0]
    tried, i, wake = 0, state.queue_start, math.inf
    state.ranked = -1
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
            state.ranked = -1
            i = state.queue_start  # the victims are in the queue now
        else:
            wake = min(wake, next_evictable_s(world, hooks, row, gain, now))
    return wake


@kernel
def next_evictable_s(world: World, hooks: Hooks, row: int, gain: float, now: float) -> float:
    """When the first protected job that it would pay to evict for `row` loses its protection; cost as of now."""
    job, state, margin = world.jobs[row], world.state[0], world.rules[0].gain_margin
    wake = math.inf
    if state.ranked < 0:  # no device type that the job accepts
        return wake
    for one in world.threatened[state.ranked : state.threatened]:
        victim = world.jobs[one.row]
        until_s = protected_until_s(world, victim)
        if until_s <= now or until_s >= wake:
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
    for k in range(world.state[0].ranked):
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


@kernel
def rank_victims(world: World, hooks: Hooks, row: int, types: int, now: float) -> None:
    """Ranks the running jobs that may be evicted for `row`: cheapest first, or last in order.

    They hold devices of some types (one bit each) and have no higher priority. Where their order decides, they are
    the same for jobs of one priority and the same types, until one of them starts.
    """
    state, priority, by_order = world.state[0], world.jobs[row].priority, world.rules[0].victims_by_order
    if state.ranked < 0 or state.ranked_priority != priority or state.ranked_types != types:
        state.ranked_priority, state.ranked_types, state.ranked, state.room_gpus = priority, types, 0, 0
        list_preemptible(world)
        for one in world.threatened[: state.threatened]:
            victim = world.jobs[one.row]
            one.running_index = victim.running_index
            protected = now < protected_until_s(world, victim) or victim.started_s == now
            if protected or victim.priority > priority or not holds_type(world, victim, types):
                one.priority, one.order_key = _LAST, 0.0
                continue
            state.ranked += 1
            advance_progress(victim, now)
            one.priority = 0
            if by_order:
                one.priority, one.order_key = victim.priority, -order_of(world, hooks, one.row, now)
        sort_victims(world.threatened, state.threatened)
    if not by_order:
        for one in world.threatened[: state.ranked]:
            one.order_key = eviction_cost_s(world, hooks, row, one.row, now)
        sort_victims(world.threatened, state.ranked)


@kernel
def list_preemptible(world: World) -> None:
    """Lists all running jobs that can be preempted: those of the last list in its order, then the others."""
    state, count = world.state[0], 0
    listed = np.zeros(state.running, np.bool_)
    for one in world.threatened[: state.threatened]:
        at = world.jobs[one.row].running_index
        if 0 <= at < state.running and world.running[at] == one.row and world.jobs[one.row].preemptible:
            listed[at] = True
            copy_threatened(one, world.threatened[count])
            count += 1
    for at in range(state.running):
        if not listed[at] and world.jobs[world.running[at]].preemptible:
            world.threatened[count].row, world.threatened[count].order_key = world.running[at], 0.0
            count += 1
    state.threatened = count


@kernel
def sort_victims(victims: Array, count: int) -> None:
    """Sorts the first of them by insertion, since they are nearly in order; where they are not, by Shell's method.

    The last entry of the array is spare.
    """
    gap, left, one = 1, _SHIFTS_PER_JOB * count, victims[-1]
    while gap > 0:
        for i in range(gap, count):
            k = i - gap
            if not is_considered_before(victims[i], victims[k]):
                continue
            copy_threatened(victims[i], one)
            while k >= 0 and is_considered_before(one, victims[k]):
                copy_threatened(victims[k], victims[k + gap])
                k -= gap
                left -= 1
            copy_threatened(one, victims[k + gap])
            if left < 0:
                gap, left = count, 1 << 60
                break
        gap = max(1, gap * 5 // 11) if gap > 1 else 0


@inlined
def is_considered_before(first: Any, second: Any) -> bool:
    """Whether a victim is considered before another: no two are alike."""
    if first.priority != second.priority:
        return first.priority < second.priority
    if first.order_key != second.order_key:
        return first.order_key < second.order_key
    return first.running_index < second.running_index


@inlined
def eviction_cost_s(world: World, hooks: Hooks, row: int, victim: int, now: float) -> float:
    """Seconds that it costs to evict a running job for `row`; inf: it may not be."""
    job = world.jobs[victim]
    return hooks.cost(job, world.jobs[row], now, world.params[0]) + restore_cost_s(world, job.gpus)


@inlined
def cost_of(world: World, hooks: Hooks, row: int, one: Any, now: float) -> float:
    """The same for one that is ranked, which is marked as evictable if it may be evicted."""
    cost = one.order_key
    if world.rules[0].victims_by_order:
        cost = eviction_cost_s(world, hooks, row, one.row, now)
    one.evictable = cost < math.inf
    return cost


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
    world: World, hooks: Hooks, row: int, device_type: int, now: float
) -> tuple[int, int, float]:
    """(group, number of victims to consider, their cost) of the group that has room first; group -1: none.

    If every victim might be evicted for any job, that group would be the same for all jobs of a size. So the policy
    is asked about the victims in it first, and about those elsewhere only where one of these may not be evicted.
    """
    state, job = world.state[0], world.jobs[row]
    if world.rules[0].victims_by_order and state.reserved_for < 0 and len(world.shapes) == 0:
        if state.room_gpus != job.gpus or state.room_tier != job.nearest_tier:
            state.room_gpus, state.room_tier, state.room_victims = job.gpus, job.nearest_tier, 0
            group, considered, _ = first_with_room(world, hooks, row, device_type, False, now)
            state.room_group, state.room_considered = group, considered
            for k in range(considered):
                if holds_devices_in(world, row, world.threatened[k].row, job.nearest_tier, group):
                    world.victims[state.room_victims] = k
                    state.room_victims += 1
        cost = 0.0
        for k in world.victims[: state.room_victims]:
            cost += cost_of(world, hooks, row, world.threatened[k], now)
        if cost < math.inf:
            return state.room_group, state.room_considered, cost
    return first_with_room(world, hooks, row, device_type, True, now)


@kernel
def first_with_room(
    world: World, hooks: Hooks, row: int, device_type: int, asks: bool, now: float
) -> tuple[int, int, float]:
    """The same; unless it `asks`, every victim may be evicted and costs nothing."""
    job, size = world.jobs[row], world.groups.shape[1]
    freed, total = np.zeros(size, np.int64), np.zeros(size)
    if world.state[0].reserved_for >= 0:
        for at in range(len(world.hosts)):
            host = world.hosts[at]
            if host.device_type == device_type and is_reserved_from(world, row, host):
                freed[host.group[job.nearest_tier]] -= host.free
    for k in range(world.state[0].ranked):
        cost, last = cost_of(world, hooks, row, world.threatened[k], now) if asks else 0.0, -1
        if cost == math.inf:
            continue
        for place in places_of(world, world.jobs[world.threatened[k].row].first_place):
            host = world.hosts[place.host]
            number = host.group[job.nearest_tier]
            if available_to(world, row, host, device_type):
                freed[number] += place.count
                if number != last:
                    total[number] += cost
                    last = number
                if freed[number] + world.groups[job.nearest_tier, number].free[device_type] >= job.gpus:
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
