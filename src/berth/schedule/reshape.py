"""Running jobs that change their shape or their place, where that is better for all by more than it costs.

A job goes on from a checkpoint, so a change costs what a restore costs. It must gain `migrate_gain` times that, and a
job is considered again only after a while: prices move, and a job that followed each of them would mostly restore.
"""

from __future__ import annotations

import math

from berth.native.kernels import indirect, kernel
from berth.schedule.allocation import assign, charge_quota, record_decision
from berth.schedule.claims import free_entries, reclaim, return_devices
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress, restore_cost_s
from berth.schedule.queue import set_order
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Action, World
from berth.schedule.reservation import A_MOMENT_S
from berth.schedule.scarcity import NO_PRIORITY, TYPE_MARGIN, price_of, set_prices
from berth.schedule.shape_choice import over_quota, remaining_in, take_shape
from berth.schedule.shapes import claim_for, find_shape
from berth.schedule.totals import charge_user

_MIN_RUN_S = 600.0  # since its last start, and since a change was last considered


@indirect
def reshape(world: World, hooks: Hooks, now: float) -> float:
    """Changes running jobs to better shapes or places; returns when to look again for jobs that wait."""
    state, scarcity, changed = world.state[0], world.scarcity[0], False
    scarcity.priced_for = NO_PRIORITY
    for i in range(state.running):
        row = world.running[i]
        job = world.jobs[row]
        if not job.movable or (job.shape_count <= 1 and not job.vector):
            continue
        since_s = max(job.restored_at_s, job.reshaped_s)
        if job.started_s == now or now < since_s + _MIN_RUN_S:
            continue
        job.reshaped_s = now
        advance_progress(job, now)
        if job.priority != scarcity.priced_for:
            set_prices(world, job.priority)
        if change_shape(world, row, now):
            set_order(world, hooks, row, now)
            world.bound[0].valid, changed = 0, True  # it may go later now
    return now + A_MOMENT_S if changed and state.queue_start < state.queue_stop else math.inf


@kernel
def change_shape(world: World, row: int, now: float) -> bool:
    """Moves a running job to the shape and place that gain most, if that is enough; its own devices count as free."""
    job = world.jobs[row]
    best, gain_s = most_to_gain(world, row)
    if best < 0:
        return False
    return_devices(world, job.first_place)
    charge_quota(world, row, -job.gpus)
    world.state[0].search_epoch += 1
    tier, group = -1, -1
    if not over_quota(world, row, best):
        tier, group = find_shape(world, best, world.shapes[best].widest_tier, False)
    if best == job.shape and tier >= job.tier:
        tier = -1  # no nearer place is free
    if tier >= 0:
        gain_s = gain_of(world, row, best, tier)
    if tier < 0 or gain_s <= least_gain_s(world, best):
        charge_quota(world, row, job.gpus)
        reclaim(world, job.first_place)
        return False
    relocate_as(world, row, best, tier, group, now)
    job.saves_s = gain_s
    return True


@kernel
def most_to_gain(world: World, row: int) -> tuple[int, float]:
    """(shape, gain) of the shape that a job would gain most by at its nearest placement; -1: none is worth it."""
    job = world.jobs[row]
    best, most_s, most_usd = -1, 0.0, world.shapes[job.shape].type_excess + TYPE_MARGIN
    for number in range(job.first_shape, job.first_shape + job.shape_count):
        shape = world.shapes[number]
        tier = shape.nearest_tier
        if number == job.shape and tier >= job.tier:
            continue
        if shape.type_excess > most_usd and not shape.gang:
            continue
        gain_s = gain_of(world, row, number, tier)
        if gain_s > max(most_s, least_gain_s(world, number)):
            best, most_s = number, gain_s
    return best, most_s


@kernel
def gain_of(world: World, row: int, number: int, tier: int) -> float:
    """Seconds that all jobs together gain if a running job goes on in a shape at a tier, without its restore."""
    job = world.jobs[row]
    here, there = world.shapes[job.shape], world.shapes[number]
    here_s = job.estimated_remaining_s / job.speed * (1.0 + price_of(world, here, False))
    there_s = remaining_in(world, row, number) * there.slowdown[tier] * (1.0 + price_of(world, there, False))
    return here_s - there_s


@kernel
def least_gain_s(world: World, number: int) -> float:
    """What a change must gain: a multiple of the restore, during which the devices are held too."""
    shape = world.shapes[number]
    restore_s = restore_cost_s(world, shape.gpus) * (1.0 + price_of(world, shape, False))
    return world.rules[0].migrate_gain * restore_s


@kernel
def relocate_as(world: World, row: int, number: int, tier: int, group: int, now: float) -> None:
    """Moves a running job, whose devices are returned and whose quota is freed, to a place in a shape."""
    job = world.jobs[row]
    from_tier, ran_since_s = job.tier, job.started_s
    charge_user(world, row, -job.gpus, now)
    free_entries(world, job.first_place)
    take_shape(world, row, number)
    assign(world, row, claim_for(world, row, job.device_type, tier, group), tier, now, ReasonCode.RESHAPED)
    charge_quota(world, row, job.gpus)
    charge_user(world, row, job.gpus, now)
    job.moves += 1
    record_decision(world, Action.MOVE, row, ReasonCode.RESHAPED, from_tier, ran_since_s)
