"""Defragmentation: running jobs move to other places so that a blocked job finds a near one.

A job may find enough free devices, but none near enough together. Then running jobs inside the group that lacks
fewest move to an equal or nearer place elsewhere, if the wait that this saves the blocked job is worth `defragment`
times what it costs them. No job goes back into the queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import relocate, start_job
from berth.schedule.asking import next_to_spread
from berth.schedule.balance import free_per_host, imbalance_of, sensitive_to_imbalance, slowdown_by_imbalance
from berth.schedule.claims import cancel_claim, claim_in_group, free_entries, return_devices, take_devices
from berth.schedule.groups import find_place
from berth.schedule.placement import accepts_device_type, device_types_of, exceeds_quota
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, restore_cost_s
from berth.schedule.queue import dequeue_at, gangs_wait, smallest_demand
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Array, World, places_of
from berth.schedule.relax_locality import set_typical_service
from berth.schedule.reservation import (
    available_to,
    available_to_some,
    close_reservation,
    open_reservation,
    passes_reservation,
    soonest_place,
    sort_by_end,
)
from berth.schedule.segments import begin_walk

_MAX_JOBS = 8  # blocked jobs considered in one pass
_MAX_GROUPS = 6  # groups considered for each
_MAX_MOVES = 16  # running jobs that move for one
_MIN_RUN_S = 300.0  # since a job's last start or move


@indirect
def defragment(world: World, hooks: Hooks, now: float) -> None:
    """Starts the first blocked jobs, in order, that would fit if the free devices were together."""
    state, waiting = world.state[0], world.waiting
    if available_to_some(world) < smallest_demand(world) or not gangs_wait(world):
        return
    running = sort_by_end(world, now)
    demand_failed = np.zeros(len(world.demands), np.bool_)
    movers, changed = np.empty(0, np.int64), True
    begin_walk(world)
    tried, i = 0, state.queue_start
    while i < state.queue_stop and tried < _MAX_JOBS:
        i = next_to_spread(world, i, True)
        if i == state.queue_stop or available_to_some(world) < smallest_untried(world, demand_failed):
            break
        row = waiting[i]
        job = world.jobs[row]
        i += 1
        started = False
        opens = passes_reservation(world, row)
        open_reservation(world, opens)
        plain = not job.vector and job.shape_count <= 1  # of several shapes, one that fits is chosen instead
        if (
            plain
            and job.gpus <= state.free
            and not demand_failed[job.demand]
            and not exceeds_quota(world, row)
        ):
            tried += 1
            wait_s = wait_worth_moving(world, hooks, row, running, now)
            if wait_s >= 0.0:
                if changed:
                    movers = movable(world, now)
                started = changed = start_by_moving(world, row, movers, wait_s, now)
            demand_failed[job.demand] = not started
        close_reservation(world, opens, row, started)
        if started:
            dequeue_at(world, i - 1)


@kernel
def smallest_untried(world: World, demand_failed: Array) -> int:
    """GPUs of the smallest waiting job for whose size others may still move."""
    for i in range(len(world.demands)):
        if world.demands[i].waiting > 0 and not demand_failed[i]:
            return world.demands[i].gpus
    return 1 << 30


@kernel
def wait_worth_moving(world: World, hooks: Hooks, row: int, running: int, now: float) -> float:
    """The look-ahead wait of a blocked job for its nearest tier; -1: it is not worth moving others."""
    job = world.jobs[row]
    when, _, _, _ = soonest_place(world, row, job.nearest_tier, running, now)
    if (when - now) / world.rules[0].defragment < restore_cost_s(world, 1):
        return -1.0
    set_typical_service(world, row)
    job.imbalance_slowdown = 1.0
    return when - now if hooks.spread(job, job.nearest_tier, when - now, now, world.params[0]) else -1.0


@kernel
def start_by_moving(world: World, row: int, rows: Array, wait_s: float, now: float) -> bool:
    """Starts one blocked job at its nearest tier, if it pays to move some of these running jobs."""
    job, worth = world.jobs[row], wait_s / world.rules[0].defragment
    for device_type in device_types_of(world, job):
        if not accepts_device_type(job, device_type):
            continue
        tried = np.zeros(world.groups.shape[1], np.bool_)
        for _ in range(_MAX_GROUPS):
            group = nearly_free(world, row, device_type, tried)
            if group < 0:
                break
            tried[group] = True
            # no moves where evictions of this pass have made room
            moves = world.groups[job.nearest_tier, group].free[device_type] < job.gpus
            if vacate(world, row, device_type, group, rows, worth, now):
                reason = ReasonCode.MADE_ROOM if moves else ReasonCode.NEAREST
                start_job(world, row, device_type, job.nearest_tier, group, now, reason)
                job.saves_s = wait_s
                return True
    return False


@kernel
def nearly_free(world: World, row: int, device_type: int, tried: Array) -> int:
    """The group of a job's nearest tier, not tried yet, that could hold it and has most devices free."""
    gpus, tier = world.jobs[row].gpus, world.jobs[row].nearest_tier
    best, most, at = -1, -1, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        free = group.free[device_type]
        if free > most and not tried[number] and usable_size(world, row, number, device_type) >= gpus:
            best, most = number, free
        at = group.stop
    return best


@kernel
def usable_size(world: World, row: int, group: int, device_type: int) -> int:
    """Devices of one type in a group of a job's nearest tier that are up and not reserved for another."""
    tier, total = world.jobs[row].nearest_tier, 0
    for at in range(world.groups[tier, group].start, world.groups[tier, group].stop):
        if available_to(world, row, world.hosts[at], device_type):
            total += world.hosts[at].size
    return total


@kernel
def vacate(
    world: World, row: int, device_type: int, group: int, rows: Array, worth: float, now: float
) -> bool:
    """Moves some of these running jobs out of a group until it holds the gang; if that can't be, nothing has changed.

    Places elsewhere are claimed first, with the group itself blocked; the claims are rolled back unless they suffice.
    """
    tier = world.jobs[row].nearest_tier
    need = world.jobs[row].gpus - world.groups[tier, group].free[device_type]
    victims, inside = inside_group(world, row, device_type, group, rows)
    claims, tiers = np.empty(_MAX_MOVES, np.int64), np.empty(_MAX_MOVES, np.int64)
    movers = np.empty(_MAX_MOVES, np.int64)
    count, cost = 0, 0.0
    blocked = free_per_host(world, device_type, tier, group)
    take_on_hosts(world, tier, group, blocked, 1)
    while need > 0 and count < _MAX_MOVES:
        pick = next_victim(inside, need)
        if pick < 0:
            break
        gives, inside[pick] = inside[pick], 0
        claim, new_tier, own_cost = claim_elsewhere(world, victims[pick], device_type, cost, worth)
        if claim < 0:
            continue
        claims[count], tiers[count], movers[count] = claim, new_tier, victims[pick]
        count += 1
        cost += own_cost
        need -= gives
    take_on_hosts(world, tier, group, blocked, -1)
    for k in range(count):
        if need > 0:
            return_devices(world, claims[k])
            free_entries(world, claims[k])
        else:
            advance_progress(world.jobs[movers[k]], now)
            return_devices(world, world.jobs[movers[k]].first_place)
            relocate(world, movers[k], claims[k], tiers[k], now, ReasonCode.STEPPED_ASIDE)
    return need <= 0


@kernel
def take_on_hosts(world: World, tier: int, group: int, devices: Array, sign: int) -> None:
    """Takes devices on each host of a group; with a negative sign it returns them."""
    start = world.groups[tier, group].start
    for k in range(len(devices)):
        take_devices(world, start + k, sign * devices[k])


@kernel
def claim_elsewhere(
    world: World, row: int, device_type: int, spent: float, worth: float
) -> tuple[int, int, float]:
    """(claim, tier, cost) of a place that a running job can move to, within what is worth it; claim -1: none."""
    job = world.jobs[row]
    cost = restore_cost_s(world, job.gpus)
    if spent + cost > worth:
        return -1, -1, cost
    balanced = sensitive_to_imbalance(world, job)
    widest_tier = job.widest_tier if world.rules[0].defragment_farther else job.tier
    tier, group = find_place(world, device_type, job.gpus, job.nearest_tier, widest_tier, balanced)
    if tier < 0:
        return -1, -1, cost
    claim = claim_in_group(world, device_type, tier, group, job.gpus, balanced)
    slower = slowdown_on(world, job, claim, tier) - slowdown_on(world, job, job.first_place, job.tier)
    cost += job.estimated_remaining_s * max(0.0, slower)
    if spent + cost > worth:
        cancel_claim(world, claim)
        return -1, -1, cost
    return claim, tier, cost


@inlined
def slowdown_on(world: World, job: Any, claim: int, tier: int) -> float:
    """Slowdown of a job on these places, by tier and shape."""
    if sensitive_to_imbalance(world, job) and tier > 0:
        return job.slowdown[tier] * slowdown_by_imbalance(job, imbalance_of(world, claim))
    return job.slowdown[tier]


@kernel
def movable(world: World, now: float) -> Array:
    """Running jobs that may be moved for others: not soon after their last start or move."""
    state, rows, count = world.state[0], np.empty(world.state[0].running, np.int64), 0
    for i in range(state.running):
        job = world.jobs[world.running[i]]
        fixed = not job.movable or job.vector
        if not fixed and now - job.started_s >= _MIN_RUN_S:
            rows[count] = world.running[i]
            count += 1
    return rows[:count]


@kernel
def inside_group(
    world: World, row: int, device_type: int, group: int, candidates: Array
) -> tuple[Array, Array]:
    """Those of the candidates that hold devices inside a group that `row` could use, and how many each.

    No job moves for one of lower priority.
    """
    tier, count = world.jobs[row].nearest_tier, 0
    rows, inside = np.empty(len(candidates), np.int64), np.empty(len(candidates), np.int64)
    for candidate in candidates:
        if world.jobs[candidate].priority > world.jobs[row].priority:
            continue
        held = 0
        for place in places_of(world, world.jobs[candidate].first_place):
            host = world.hosts[place.host]
            if host.group[tier] == group and available_to(world, row, host, device_type):
                held += place.count
        if held > 0:
            rows[count], inside[count] = candidate, held
            count += 1
    return rows[:count], inside[:count]


@kernel
def next_victim(inside: Array, need: int) -> int:
    """The smallest that suffices, else the largest; -1: none is left."""
    enough, largest = -1, -1
    for k in range(len(inside)):
        if inside[k] <= 0:
            continue
        if inside[k] >= need and (enough < 0 or inside[k] < inside[enough]):
            enough = k
        if largest < 0 or inside[k] > inside[largest]:
            largest = k
    return enough if enough >= 0 else largest
