"""The walk: every waiting job, most deserving first, gets the nearest place within reach, or a reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.compile import inlined, kernel, step
from berth.schedule.attempt import begin, find_for, nearest_place, over_quota, restore_s, set_keys, takes
from berth.schedule.hold import A_MOMENT_S, EVERY_JOB, by_end, hide, hold, soonest, unhide
from berth.schedule.policy import Hooks
from berth.schedule.queue import close_gap, sort_rows
from berth.schedule.reasons import (
    BACKFILLED,
    BEHIND,
    HELD_FOR_OTHER,
    LINKS_BUSY,
    NEAREST,
    NO_ROOM,
    OVER_QUOTA,
    SPREAD,
    TOO_SPREAD,
)
from berth.schedule.shape import best_shape, free_of, minds_shape, slow_by_shape
from berth.schedule.view import World

SKIP, STOP, BACKFILL = 0, 1, 2
_BY_ORDER = 1  # see policy.Preempt


@kernel
def refresh_keys(world: World, hooks: Hooks, now: float) -> float:
    """Brings the order of the waiting up to date, for policies whose keys move while a job waits.

    Returns when the policy wants to be asked again: of those whom the pass does not reach nobody else asks.
    """
    waiting, wake = world.waiting[world.state[0].first : world.state[0].last], math.inf
    for row in waiting:
        set_keys(world, hooks, row, now)
        wake = min(wake, wake_of(world, hooks, row, now))
    sort_rows(world.jobs, waiting)
    return wake


@kernel
def rekey(world: World, hooks: Hooks, now: float) -> None:
    """Asks anew where those stand who have waited long; who joins later has not before as much time again."""
    state = world.state[0]
    waiting = world.waiting[state.first : state.last]
    state.next_rekey = now + max(1.0, state.rekey_after_s)
    for row in waiting:
        due = world.jobs[row].since + state.rekey_after_s
        if due <= now:
            set_keys(world, hooks, row, now)
        else:
            state.next_rekey = min(state.next_rekey, due)
    sort_rows(world.jobs, waiting)


@inlined
def smallest_demand(world: World) -> int:
    """GPUs of the smallest job that waits."""
    for i in range(len(world.demands)):
        if world.demands[i].waiting > 0:
            return world.demands[i].gpus
    return 1 << 30


@kernel
def reach_of(world: World, hooks: Hooks, row: int, now: float) -> int:
    """How far the policy lets a job be spread now, within what its user allows."""
    job = world.jobs[row]
    if world.state[0].learns:
        for tier in range(world.groups.shape[0]):
            job.timer[tier] = world.offers[job.demand, tier].timer
    return max(job.floor, min(hooks.reach(job, now, world.my[0]), job.widest))


@inlined
def wake_of(world: World, hooks: Hooks, row: int, now: float) -> float:
    """When the policy wants to be asked again about a job; a moment that is past says nothing."""
    wake = hooks.wake(world.jobs[row], now, world.my[0])
    if wake == now:  # a timer that runs out now but for rounding
        return max(now + A_MOMENT_S, np.nextafter(now, math.inf))
    return wake if wake > now else math.inf


@inlined
def start_reason(world: World, row: int, tier: int) -> int:
    """Why a place was taken: the nearest there can be, or a farther one."""
    return NEAREST if tier == world.jobs[row].floor else SPREAD


@kernel
def with_held(world: World, row: int, tier: int) -> int:
    """Free devices of the held type, held ones included, in that group of a tier around them that has most."""
    state = world.state[0]
    if not takes(world.jobs[row], state.held_kind):
        return 0
    held = world.groups[state.held_tier, state.held_group]
    best, last, free = 0, -1, 0
    for at in range(held.start, held.stop):
        host = world.hosts[at]
        if host.group[tier] != last:
            last = host.group[tier]
            free = world.groups[tier, last].free[state.held_kind]
        free += host.hidden
        best = max(best, free)
    return best


@inlined
def most_free(world: World, job: Any) -> int:
    """Free devices of the type that a job takes; of several, of that which has most."""
    free, most = world.groups[world.groups.shape[0] - 1, 0].free, 0
    for kind in range(world.state[0].kinds):
        if takes(job, kind):
            most = max(most, free[kind])
    return most


@kernel
def note_wait(world: World, row: int, reach: int, wake: float) -> None:
    """Writes down why a job waits, with the numbers behind it."""
    job, state = world.jobs[row], world.state[0]
    job.holds_out, job.until, job.noted = reach, wake, state.now
    wider = min(reach + 1, job.widest)
    job.saves = job.remaining * (job.slow[wider] - job.slow[reach])
    if over_quota(world, row):
        quota = world.quotas[job.quota]
        job.reason = OVER_QUOTA if quota.used + job.gpus > quota.allowed else BEHIND
        return
    top, held = world.groups.shape[0] - 1, state.held >= 0 and state.hidden > 0
    if held and state.held != row and with_held(world, row, reach) >= job.gpus:
        job.reason = HELD_FOR_OTHER
    elif state.link_ratio < math.inf and nearest_place(world, row, reach)[0] >= 0:
        job.reason = LINKS_BUSY
    elif most_free(world, job) >= job.gpus or (held and with_held(world, row, top) >= job.gpus):
        job.reason = TOO_SPREAD
    else:
        job.reason = NO_ROOM


@kernel
def bend(world: World, row: int, kind: int, group: int) -> float:
    """Slow-down by the best shape that a rack has for a gang now."""
    job = world.jobs[row]
    if not minds_shape(job, world.state[0].shape):
        return 1.0
    x, _, _ = best_shape(free_of(world, kind, 1, group), job.gpus)
    return slow_by_shape(job, x)


@step
def walk(world: World, hooks: Hooks, now: float, blocked: int) -> float:
    """Returns when to look again, if nothing happens before."""
    waiting, state = world.waiting, world.state[0]
    state.passes += 1
    wake, kept, i = math.inf, state.first, state.first
    smallest = smallest_demand(world)
    priority, asked = EVERY_JOB, state.first
    while i < state.last and state.free + state.hidden >= smallest:
        row = waiting[i]
        if world.jobs[row].priority < priority:
            priority = world.jobs[row].priority
            if blocked == SKIP and state.preempt != _BY_ORDER:
                asked = reserve_from_lower(world, asked, kept, now)
        reach = reach_of(world, hooks, row, now)
        mine = state.held == row  # what is held for this very job it may use
        if mine:
            unhide(world)
        kind, tier, group = find_for(world, row, reach, mine)
        if mine and kind < 0:
            hide(world)
        looks = kind >= 0 and tier == 1 and state.look_ahead and not mine
        if looks and bend(world, row, kind, group) > 1.0 + state.shape:
            kind = -1  # whether it takes a place of so bad a shape is decided by looking ahead
        i += 1
        if kind >= 0:
            state.held = -1 if mine else state.held
            begin(world, row, kind, tier, group, now, start_reason(world, row, tier))
            smallest = smallest_demand(world)
            continue
        if state.held >= 0 and state.held != row and squeeze_in(world, row, reach, now):
            continue
        own = wake_of(world, hooks, row, now)
        wake = min(wake, own)
        note_wait(world, row, reach, own)
        waiting[kept] = row
        kept += 1
        # who waits for its own virtual cluster blocks nobody else; by order it may yet take the place of another
        if blocked != SKIP and state.preempt != _BY_ORDER and over_quota(world, row):
            world.quotas[world.jobs[row].quota].closed = state.passes
        elif blocked == STOP:
            break
        elif blocked == BACKFILL and state.held < 0:
            reserve(world, row, reach, EVERY_JOB, now)
    close_gap(world, kept, i)
    return wake


@kernel
def reserve_from_lower(world: World, asked: int, kept: int, now: float) -> int:
    """Reserves a place for the first job that does not fit, before jobs of lower priority are asked.

    Equal priorities may pass each other where the policy says so; a lower one only where that does not delay the
    first. Returns how far down the queue a place was looked for: who finds none now finds none later in this pass.
    """
    while asked < kept and world.state[0].held < 0:
        row = world.waiting[asked]
        asked += 1
        if not over_quota(world, row):
            job = world.jobs[row]
            reserve(world, row, job.holds_out, job.priority, now)
    return asked


@kernel
def reserve(world: World, row: int, reach: int, below: int, now: float) -> None:
    """Holds the place where a job can start soonest from others of a priority below this."""
    until, group, kind, extra = soonest(world, row, reach, by_end(world, now), now)
    if group >= 0:
        hold(world, row, reach, group, kind, until, extra, below)


@kernel
def squeeze_in(world: World, row: int, reach: int, now: float) -> bool:
    """Starts a job on held devices if it ends before they are needed, or if they will not be needed."""
    job, state = world.jobs[row], world.state[0]
    restoring = restore_s(world, job.gpus) if job.first_start >= 0 else 0.0
    in_time = now + restoring + job.remaining * job.slow[reach] <= state.held_until
    if job.gpus > state.free + state.hidden or (not in_time and job.gpus > state.held_extra):
        return False
    if world.demands[job.demand].failed_open[job.kind + 1, reach] == state.passes:
        return False
    unhide(world)
    kind, tier, group = find_for(world, row, reach, True)
    if kind >= 0:
        begin(world, row, kind, tier, group, now, BACKFILLED)
        if not in_time:
            state.held_extra -= job.gpus
    hide(world)
    return kind >= 0
