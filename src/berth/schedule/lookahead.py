"""Spreading what would idle: a job that waits for a near place may take a farther one, if that is cheaper.

A near place is expected when enough of what runs there has ended. Whether waiting for it costs more than
running spread is the policy's word (`spread`).
"""

from __future__ import annotations

from berth.compile import kernel
from berth.schedule.attempt import begin, find_for, over_quota
from berth.schedule.hold import by_end, hold, soonest
from berth.schedule.place import find
from berth.schedule.policy import Hooks
from berth.schedule.queue import close_gap
from berth.schedule.reasons import CHEAPER_THAN_WAITING, HELD_FOR_IT, LOOKS_AHEAD
from berth.schedule.view import Array, World
from berth.schedule.walk import smallest_demand


@kernel
def spread_idle(world: World, hooks: Hooks, now: float) -> None:
    """Waiting jobs, most deserving first, may spread over devices that nobody took."""
    state, waiting = world.state[0], world.waiting
    if state.free < smallest_demand(world):
        return
    rows = by_end(world, now)
    state.passes += 1
    kept = state.first
    i = kept
    while i < state.last and state.free >= smallest_demand(world):
        row = waiting[i]
        i += 1
        if not take_spread(world, hooks, row, rows, now):
            waiting[kept] = row
            kept += 1
    close_gap(world, kept, i)


@kernel
def take_spread(world: World, hooks: Hooks, row: int, rows: Array, now: float) -> bool:
    """Starts one job spread, or notes what it waits for."""
    job, state = world.jobs[row], world.state[0]
    if job.gpus > state.free or job.floor >= job.widest:
        return False
    kind, tier, group = find_for(world, row, job.widest, False)
    if kind < 0:
        return False
    when, _, _ = soonest(world, row, job.floor, rows, now)
    job.reason, job.holds_out, job.until, job.noted = LOOKS_AHEAD, job.floor, when, now
    job.saves = job.remaining * (job.slow[tier] - job.slow[job.floor])
    if not hooks.spread(job, tier, when - now, now, world.my[0]):
        return False
    begin(world, row, kind, tier, group, now, CHEAPER_THAN_WAITING)
    return True


@kernel
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
        for k in range(at, state.first, -1):
            waiting[k] = waiting[k - 1]
        state.first += 1
        return
    when, group, extra = soonest(world, row, job.floor, by_end(world, now), now)
    if group >= 0 and when - now <= state.hold_share * (now - job.since):
        hold(world, row, job.floor, group, when, extra)
        job.reserved = group


@kernel
def nearer(world: World, row: int, now: float) -> tuple[int, int, int]:
    """(kind, tier, group) of the nearest free place that is nearer than where a running job stands."""
    job = world.jobs[row]
    kind = world.hosts[world.places[job.head].host].kind
    tier, group = find(world, kind, job.gpus, job.floor, job.tier - 1)
    return kind, tier, group
