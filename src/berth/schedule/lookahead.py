"""Spreading what would idle: a job that waits for a near place may take a farther one, if that is cheaper.

A near place is expected when enough of what runs there has ended. Whether waiting for it costs more than
running spread is the policy's word (`spread`).
"""

from __future__ import annotations

import math

import numpy as np

from berth.compile import kernel, step
from berth.schedule.attempt import begin, find_for, over_quota, takes, tell_usual
from berth.schedule.hold import (
    EVERY_JOB,
    by_end,
    hide,
    hold,
    in_sight_of_some,
    kept_from,
    outranks_hold,
    soonest,
    unhide,
)
from berth.schedule.place import find
from berth.schedule.policy import Hooks
from berth.schedule.queue import close_gap, step_out
from berth.schedule.reasons import CHEAPER_THAN_WAITING, HELD_FOR_IT, LOOKS_AHEAD, NEAREST
from berth.schedule.shape import best_shape, minds_shape, slow_by_shape
from berth.schedule.view import Array, World
from berth.schedule.walk import bend, smallest_demand


@step
def spread_idle(world: World, hooks: Hooks, now: float) -> None:
    """Waiting jobs, most deserving first, may spread over devices that nobody took."""
    state, waiting = world.state[0], world.waiting
    if in_sight_of_some(world) < smallest_demand(world):
        return
    rows = by_end(world, now)
    state.passes += 1
    kept = state.first
    i = kept
    while i < state.last and in_sight_of_some(world) >= smallest_demand(world):
        row = waiting[i]
        i += 1
        opens = outranks_hold(world, row)
        if opens:
            unhide(world)
        done = take_spread(world, hooks, row, rows, opens, now)
        if opens and done and state.held == row:
            state.held = -1
        elif opens:
            hide(world)
        if not done:
            waiting[kept] = row
            kept += 1
    close_gap(world, kept, i)


@kernel
def take_spread(world: World, hooks: Hooks, row: int, rows: Array, open_: bool, now: float) -> bool:
    """Starts one job spread, or notes what it waits for; `open_`: it may use held devices, which are in sight."""
    job, state = world.jobs[row], world.state[0]
    if job.gpus > state.free or (job.floor >= job.widest and not minds_shape(job, state.shape)):
        return False
    kind, tier, group = find_for(world, row, job.widest, open_)
    if kind < 0:
        return False
    job.bent = bend(world, row, kind, group) if tier == 1 else 1.0
    if tier > job.floor:
        when, _, _, _ = soonest(world, row, job.floor, rows, now)
    else:
        when = rounder_from(world, row, rows, now)
    job.reason, job.holds_out, job.until, job.noted = LOOKS_AHEAD, job.floor, when, now
    job.saves = job.remaining * (job.slow[tier] * job.bent - job.slow[job.floor])
    tell_usual(world, row)
    if not hooks.spread(job, tier, when - now, now, world.my[0]):
        return False
    farther = tier > job.floor or job.bent > 1.0
    begin(world, row, kind, tier, group, now, CHEAPER_THAN_WAITING if farther else NEAREST)
    return True


@kernel
def rounder_from(world: World, row: int, rows: Array, now: float) -> float:
    """When some rack is expected to have a shape for a gang that halves what the best of today costs it."""
    job = world.jobs[row]
    limit = 1.0 + (job.bent - 1.0) / 2.0
    free = np.zeros(len(world.hosts), np.int64)
    for at in range(len(world.hosts)):
        if not kept_from(world, row, world.hosts[at]):
            free[at] = world.hosts[at].free + world.hosts[at].hidden
    for i in range(len(rows)):
        entry = world.jobs[rows[i]].head
        while entry >= 0:
            place = world.places[entry]
            host = world.hosts[place.host]
            if not host.down and takes(job, host.kind) and not kept_from(world, row, host):
                free[place.host] += place.count
                x, _, _ = best_shape(alike(world, free, place.host), job.gpus)
                if x < 2.0 and slow_by_shape(job, x) <= limit:
                    return world.jobs[rows[i]].ends
            entry = place.next
    return math.inf


@kernel
def alike(world: World, free: Array, at: int) -> Array:
    """What of `free` stands in the rack of one host on devices of its type: a gang's are all of one."""
    host = world.hosts[at]
    rack = world.groups[1, host.group[1]]
    found = np.zeros(rack.stop - rack.start, np.int64)
    for k in range(rack.start, rack.stop):
        if world.hosts[k].kind == host.kind:
            found[k - rack.start] = free[k]
    return found


@step
def hold_for_longest(world: World, hooks: Hooks, now: float) -> None:
    """The job that has waited longest, once over the limit, starts if it can, or has a place held for it."""
    state, waiting = world.state[0], world.waiting
    longest, at = now - state.hold_after_s, -1
    for i in range(state.first, state.last):
        job = world.jobs[waiting[i]]
        if job.since < longest and not over_quota(world, waiting[i]):
            longest, at = job.since, i
    if at < 0:
        return
    row = waiting[at]
    job = world.jobs[row]
    state.passes += 1
    kind, tier, group = find_for(world, row, job.floor, False)
    if kind >= 0:
        begin(world, row, kind, tier, group, now, HELD_FOR_IT)
        step_out(world, at)
        return
    when, group, kind, extra = soonest(world, row, job.floor, by_end(world, now), now)
    if group >= 0 and when - now <= state.hold_share * (now - job.since):
        hold(world, row, job.floor, group, kind, when, extra, EVERY_JOB)


@kernel
def nearer(world: World, row: int, now: float) -> tuple[int, int, int]:
    """(kind, tier, group) of the nearest free place that is nearer than where a running job stands."""
    job = world.jobs[row]
    kind = world.hosts[world.places[job.head].host].kind
    tier, group = find(world, kind, job.gpus, job.floor, job.tier - 1, minds_shape(job, world.state[0].shape))
    return kind, tier, group
