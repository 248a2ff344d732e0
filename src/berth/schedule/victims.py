"""Which running jobs may be evicted for a waiting one, what they cost, and the group in which they make room first.

The running jobs that can be preempted are kept in `World.threatened` from one look to the next: first those that may be
evicted (`VictimSearch.ranked` of them), in the order in which they are considered, then those that may not for the
moment. They are nearly in order at the next look, and what a victim costs is asked only where it decides.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.kernels import inlined, kernel
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, restore_cost_s
from berth.schedule.queue import order_of
from berth.schedule.records import Array, World, places_of
from berth.schedule.reservation import available_to, is_reserved_from
from berth.schedule.threatened import copy_threatened

_LAST = 2**31 - 1  # the priority of those that may not be evicted: behind all others
_SHIFTS_PER_JOB = 8  # insertion sort gives up beyond this average


@kernel
def rank_victims(world: World, hooks: Hooks, row: int, types: int, now: float) -> None:
    """Finds the running jobs that may be evicted for `row`, and which go first: cheapest first, or last in order.

    They hold devices of some types (one bit each) and have no higher priority. Where their order decides, they are
    the same for jobs of one priority and the same types, until one of them starts.
    """
    search, priority = world.victim_search[0], world.jobs[row].priority
    if search.ranked < 0 or search.ranked_priority != priority or search.ranked_types != types:
        search.ranked_priority, search.ranked_types = priority, types
        list_victims(world, hooks, priority, types, now)
    if not world.rules[0].victims_by_order:
        for one in world.threatened[: search.ranked]:
            one.order_key = eviction_cost_s(world, hooks, row, one.row, now)
        sort_victims(world.threatened, search.ranked)


@kernel
def list_victims(world: World, hooks: Hooks, priority: int, types: int, now: float) -> None:
    """Lists the running jobs that can be preempted, those that may be evicted first and in order."""
    search, by_order = world.victim_search[0], world.rules[0].victims_by_order
    search.ranked = search.room_gpus = 0
    list_preemptible(world)
    for one in world.threatened[: search.threatened]:
        victim = world.jobs[one.row]
        one.running_index, one.asked, one.evictable = victim.running_index, 0, 0
        protected = now < protected_until_s(world, victim) or victim.started_s == now
        if protected or victim.priority > priority or not holds_type(world, victim, types):
            one.priority, one.order_key = _LAST, math.inf
            continue
        search.ranked += 1
        advance_progress(victim, now)
        one.priority = 0
        if by_order:
            one.priority, one.order_key = victim.priority, -order_of(world, hooks, one.row, now)
    sort_victims(world.threatened, search.threatened)
    for one in world.threatened[search.ranked : search.threatened]:
        one.until_s = protected_until_s(world, world.jobs[one.row])


@kernel
def list_preemptible(world: World) -> None:
    """Lists all running jobs that can be preempted: those of the last list in its order, then the others."""
    state, search, count = world.state[0], world.victim_search[0], 0
    listed = np.zeros(state.running, np.bool_)
    for one in world.threatened[: search.threatened]:
        at = world.jobs[one.row].running_index
        if 0 <= at < state.running and world.running[at] == one.row and world.jobs[one.row].preemptible:
            listed[at] = True
            copy_threatened(one, world.threatened[count])
            count += 1
    for at in range(state.running):
        if not listed[at] and world.jobs[world.running[at]].preemptible:
            world.threatened[count].row, world.threatened[count].order_key = world.running[at], 0.0
            count += 1
    search.threatened = count


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


@inlined
def holds_type(world: World, job: Any, types: int) -> bool:
    """Whether a running job holds devices of one of these types, one bit each."""
    if world.state[0].device_types == 1:
        return True
    return holds_one_of(world, job, types)


@kernel
def holds_one_of(world: World, job: Any, types: int) -> bool:
    """The same where there are several types."""
    held = False
    for place in places_of(world, job.first_place):
        held |= types >> world.hosts[place.host].device_type & 1 == 1
    return held


# What a victim costs


@inlined
def eviction_cost_s(world: World, hooks: Hooks, row: int, victim: int, now: float) -> float:
    """Seconds that it costs to evict a running job for `row`; inf: it may not be."""
    job = world.jobs[victim]
    return hooks.cost(job, world.jobs[row], now, world.params[0]) + restore_cost_s(world, job.gpus)


@kernel
def cost_of(world: World, hooks: Hooks, row: int, one: Any, now: float) -> float:
    """The same for one that is ranked, which is marked as evictable if it may be evicted.

    Where the policy promises that it is infinite or the same for all jobs, it is asked once.
    """
    rules, cost = world.rules[0], one.order_key
    if costs_by_order(world):
        cost = math.inf
        if goes_after(one, world.jobs[row]):
            if not one.asked:
                one.asked, one.cost_s = 1, eviction_cost_s(world, hooks, row, one.row, now)
            cost = one.cost_s
    elif rules.victims_by_order:
        cost = eviction_cost_s(world, hooks, row, one.row, now)
    one.evictable = cost < math.inf
    return cost


@inlined
def costs_by_order(world: World) -> bool:
    """Whether each victim costs all jobs the same: a waiting job that changes its shape has an earlier order."""
    return bool(world.rules[0].cost_by_order) and len(world.shapes) == 0


@inlined
def goes_after(one: Any, job: Any) -> bool:
    """Whether a victim goes after a waiting job by the policy's order alone."""
    return -one.order_key > job.order_key


@kernel
def protected_cost_s(world: World, hooks: Hooks, row: int, one: Any, now: float) -> float:
    """The same for one that is protected, whose order is not known.

    Its `order_key` is that of the first job for which it may not be evicted.
    """
    promised, job = costs_by_order(world), world.jobs[row]
    if promised and job.order_key >= one.order_key:
        return math.inf
    advance_progress(world.jobs[one.row], now)
    cost = eviction_cost_s(world, hooks, row, one.row, now)
    if cost == math.inf:
        one.order_key = job.order_key
    elif promised:
        one.asked, one.cost_s = 1, cost
    return cost


@inlined
def least_cost_s(one: Any) -> float:
    """No more than what a protected job costs for any job."""
    return one.cost_s if one.asked else -math.inf


# The group with room first


@kernel
def cheapest_group(
    world: World, hooks: Hooks, row: int, device_type: int, now: float
) -> tuple[int, int, float]:
    """(group, number of victims to consider, their cost) of the group that has room first; group -1: none.

    If every victim might be evicted for any job, that group would be the same for all jobs of a size. So the policy
    is asked about the victims in it first, and about those elsewhere only where one of these may not be evicted.
    """
    search, job, promised = world.victim_search[0], world.jobs[row], costs_by_order(world)
    searches = world.rules[0].victims_by_order and len(world.shapes) == 0
    searches = searches and world.reservation[0].holder < 0
    while searches:
        find_room(world, hooks, row, device_type, now)
        if search.room_group < 0:
            return -1, -1, 0.0
        last = world.threatened[search.room_considered - 1]
        if promised and last.priority == job.priority and not goes_after(last, job):
            return -1, -1, 0.0  # nor may those be evicted that are considered later
        cost = 0.0
        for k in world.victims[: search.room_victims]:
            cost += cost_of(world, hooks, row, world.threatened[k], now)
        if cost < math.inf:
            return search.room_group, search.room_considered, cost
        searches = spare_some(world)
    return first_with_room(world, hooks, row, device_type, True, now)


@kernel
def find_room(world: World, hooks: Hooks, row: int, device_type: int, now: float) -> None:
    """Finds the group in which victims make room first for jobs of this size, unless that is known."""
    search, job = world.victim_search[0], world.jobs[row]
    if search.room_gpus == job.gpus and search.room_tier == job.nearest_tier:
        return
    search.room_gpus, search.room_tier, search.room_victims = job.gpus, job.nearest_tier, 0
    group, considered, _ = first_with_room(world, hooks, row, device_type, False, now)
    search.room_group, search.room_considered = group, considered
    for k in range(considered):
        one = world.threatened[k]
        if not is_spared(one) and holds_devices_in(world, row, one.row, job.nearest_tier, group):
            world.victims[search.room_victims] = k
            search.room_victims += 1


@kernel
def spare_some(world: World) -> bool:
    """Whether a victim in that group may be evicted for no job: then another group is to be found, without it."""
    search = world.victim_search[0]
    for k in world.victims[: search.room_victims]:
        one = world.threatened[k]
        if is_spared(one):
            world.jobs[one.row].spared = 1
            search.room_gpus = 0
    return bool(search.room_gpus == 0)


@inlined
def is_spared(one: Any) -> bool:
    """Whether it is known that a victim may be evicted for no job."""
    return one.asked and one.cost_s == math.inf


@kernel
def first_with_room(
    world: World, hooks: Hooks, row: int, device_type: int, asks: bool, now: float
) -> tuple[int, int, float]:
    """The same; unless it `asks`, all may be evicted of which it is not known otherwise, and cost nothing."""
    job, size = world.jobs[row], world.groups.shape[1]
    freed, total = np.zeros(size, np.int64), np.zeros(size)
    if world.reservation[0].holder >= 0:
        for at in range(len(world.hosts)):
            host = world.hosts[at]
            if host.device_type == device_type and is_reserved_from(world, row, host):
                freed[host.group[job.nearest_tier]] -= host.free
    for k in range(world.victim_search[0].ranked):
        one, cost, last = world.threatened[k], 0.0, -1
        victim = world.jobs[one.row]
        if asks or victim.spared:  # one that was spared at an earlier look is likely to be again
            cost = cost_of(world, hooks, row, one, now)
        if cost == math.inf and (asks or is_spared(one)):
            continue
        for place in places_of(world, victim.first_place):
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


@kernel
def holds_devices_in(world: World, row: int, victim: int, tier: int, group: int) -> bool:
    """Whether a running job holds devices inside a group that `row` could use."""
    for place in places_of(world, world.jobs[victim].first_place):
        host = world.hosts[place.host]
        if host.group[tier] == group and not host.down and not is_reserved_from(world, row, host):
            return True
    return False
