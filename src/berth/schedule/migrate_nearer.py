"""Migration of running jobs to a nearer or more balanced place that has come free."""

from __future__ import annotations

import numpy as np

from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import relocate
from berth.schedule.balance import (
    best_shape,
    free_per_host,
    imbalance_of,
    most_balanced_group,
    sensitive_to_imbalance,
    slowdown_by_imbalance,
)
from berth.schedule.claims import claim_in_group, reclaim, return_devices
from berth.schedule.groups import find_place
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, restore_cost_s
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Array, World, places_of


@indirect
def migrate_nearer(world: World, hooks: Hooks, now: float) -> None:
    """Moves spread jobs to nearer places if that saves enough of what moving costs."""
    for row in spread_jobs(world):
        job = world.jobs[row]
        fixed = not job.movable or job.vector or job.shape_count > 1
        if job.started_s == now or fixed:
            continue
        nearer = -1
        if job.tier > job.nearest_tier:
            advance_progress(job, now)
            # cheaper than a search; where the nearest tier saves too little, so does any other
            if saved_s(world, hooks, row, job.nearest_tier, now) > 0.0:
                nearer = nearer_tier(world, row)
        if nearer >= 0:
            migrate_to(world, hooks, row, nearer, now)
        else:
            rebalance(world, hooks, row, now)


@kernel
def spread_jobs(world: World) -> Array:
    """Rows of the jobs that run on several machines, in the order of `World.running`."""
    state, rows, count = world.state[0], world.apart, 0
    places = np.empty(state.apart, np.int32)  # in that order
    for i in range(state.apart):
        row, job = rows[i], world.jobs[rows[i]]
        if job.tier <= 0:
            job.in_apart_list = 0
            continue
        at, k = job.running_index, count - 1
        while k >= 0 and places[k] > at:
            rows[k + 1], places[k + 1] = rows[k], places[k]
            k -= 1
        rows[k + 1], places[k + 1] = row, at
        count += 1
    state.apart = count
    return rows[:count]


@inlined
def saved_s(world: World, hooks: Hooks, row: int, tier: int, now: float) -> float:
    """Seconds that a running job would save at a nearer tier; 0: too few to move it."""
    job = world.jobs[row]
    saves_s = hooks.gain(job, job.slowdown[job.tier], job.slowdown[tier], now, world.params[0])
    pays = saves_s > world.rules[0].migrate_gain * restore_cost_s(world, job.gpus)
    return saves_s if pays else 0.0


@kernel
def nearer_tier(world: World, row: int) -> int:
    """The nearest tier with a place for a running job that is nearer than its own, or -1; its own devices count."""
    job = world.jobs[row]
    balanced = sensitive_to_imbalance(world, job)
    device_type = world.hosts[world.places[job.first_place].host].device_type
    free, _ = find_place(world, device_type, job.gpus, job.nearest_tier, job.tier - 1, balanced)
    for tier in range(job.nearest_tier, job.tier if free < 0 else free):
        if holds_with_its_own(world, row, tier, device_type):
            return tier
    return free


@kernel
def holds_with_its_own(world: World, row: int, tier: int, device_type: int) -> bool:
    """Whether a group of a tier that has devices of a running job has enough free ones for the others."""
    job = world.jobs[row]
    for place in places_of(world, job.first_place):
        group, own = world.hosts[place.host].group[tier], 0
        for other in places_of(world, job.first_place):
            host = world.hosts[other.host]
            if host.group[tier] == group and not host.down:
                own += other.count
        if own + world.groups[tier, group].free[device_type] >= job.gpus:
            return True
    return False


@kernel
def migrate_to(world: World, hooks: Hooks, row: int, tier: int, now: float) -> None:
    """Moves a running job to a place at a nearer tier, if it pays."""
    job = world.jobs[row]
    saves_s = saved_s(world, hooks, row, tier, now)
    if saves_s <= 0.0:
        return
    balanced = sensitive_to_imbalance(world, job)
    device_type = world.hosts[world.places[job.first_place].host].device_type
    return_devices(world, job.first_place)
    tier, group = find_place(world, device_type, job.gpus, job.nearest_tier, tier, balanced)
    if group < 0:
        reclaim(world, job.first_place)
        return
    move_up(world, row, device_type, tier, group, saves_s, now)


@kernel
def rebalance(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Moves a gang in a rack to a more balanced place in a rack, if it pays; its own devices count as free."""
    job, rules = world.jobs[row], world.rules[0]
    if job.tier != 1 or not sensitive_to_imbalance(world, job):
        return
    own = imbalance_of(world, job.first_place)
    here = slowdown_by_imbalance(job, own)
    if here <= 1.0 + rules.imbalance_tolerance:
        return
    advance_progress(job, now)
    device_type = world.hosts[world.places[job.first_place].host].device_type
    return_devices(world, job.first_place)
    group = most_balanced_group(world, device_type, job.gpus, 1)
    saves_s = 0.0
    if group >= 0:
        x, _, _ = best_shape(free_per_host(world, device_type, 1, group), job.gpus)
        if x < own:
            there = slowdown_by_imbalance(job, x)
            saves_s = hooks.gain(job, job.slowdown[1] * here, job.slowdown[1] * there, now, world.params[0])
    if saves_s <= rules.migrate_gain * restore_cost_s(world, job.gpus):
        reclaim(world, job.first_place)
        return
    move_up(world, row, device_type, 1, group, saves_s, now)


@kernel
def move_up(
    world: World, row: int, device_type: int, tier: int, group: int, saves_s: float, now: float
) -> None:
    """Moves a running job, whose devices are returned, into a group."""
    job = world.jobs[row]
    claim = claim_in_group(world, device_type, tier, group, job.gpus, sensitive_to_imbalance(world, job))
    relocate(world, row, claim, tier, now, ReasonCode.MOVED_UP)
    job.saves_s = saves_s
