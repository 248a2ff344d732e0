"""Preemption by order: at every event the most deserving of all jobs run."""

from __future__ import annotations

import math

import numpy as np

from berth.compile import inlined, kernel, step
from berth.schedule.attempt import (
    begin,
    charge,
    find_for,
    leave,
    note,
    over_quota,
    requeue,
    set_keys,
    touch,
)
from berth.schedule.place import claim_again, offer_back, still_free
from berth.schedule.policy import Hooks
from berth.schedule.queue import before, close_gap, sort_rows
from berth.schedule.reasons import OUTRANKED
from berth.schedule.view import EVICT, Array, World
from berth.schedule.walk import note_wait, reach_of, smallest_demand, start_reason, wake_of

_BEYOND_ANY = 2**31 - 1  # priority of the bound while nothing runs


@step
def replan(world: World, hooks: Hooks, now: float) -> float:
    """A waiting job that finds no place makes less deserving running jobs offer theirs.

    They offer one after the other, the least deserving first, as long as the waiting one is more deserving.
    Then those who offered take their places again, in order, if they are still there; who can't is evicted.
    On a flat pool this is the greedy walk over all jobs, waiting and running, without touching those whom
    nothing threatens.
    """
    jobs, waiting, state = world.jobs, world.waiting, world.state[0]
    ranked = long_running(world, rank_threatened(world, hooks, now), now)
    total = len(ranked)
    # ranked[offered:] have offered their places; ranked[settled:] are yet to be asked to take them again
    offered, settled = total, total
    losers = np.empty(total, np.int64)
    lost = 0
    wake, kept, i = math.inf, state.first, state.first
    state.passes += 1
    while i < state.last:
        row = waiting[i]
        threatens = offered == settled and offered > 0 and before(jobs, row, ranked[offered - 1])
        if not threatens and state.free < smallest_demand(world):
            break
        while settled < total and not before(jobs, row, ranked[settled]):
            lost = settle(world, ranked[settled], losers, lost)
            settled += 1
        reach = reach_of(world, hooks, row, now)
        kind, tier, group = find_for(world, row, reach, False)
        # once somebody has taken its place again, nobody offers any more: it would be asked twice
        while kind < 0 and offered == settled and offered > 0 and before(jobs, row, ranked[offered - 1]):
            offered -= 1
            settled = offered
            offer_back(world, jobs[ranked[offered]].head)
            charge(world, ranked[offered], -jobs[ranked[offered]].gpus)
            if state.free >= jobs[row].gpus:
                state.passes += 1  # what failed before may fit now
                kind, tier, group = find_for(world, row, reach, False)
        i += 1
        if kind >= 0:
            begin(world, row, kind, tier, group, now, start_reason(world, row, tier))
        else:
            jobs[row].holds_out, jobs[row].until = reach, wake_of(world, hooks, row, now)
            wake = min(wake, jobs[row].until)
            waiting[kept] = row
            kept += 1
    while settled < total:
        lost = settle(world, ranked[settled], losers, lost)
        settled += 1
    for k in range(state.first, kept):  # only now is it known what stays free
        note_wait(world, waiting[k], jobs[waiting[k]].holds_out, jobs[waiting[k]].until)
    close_gap(world, kept, i)
    for k in range(lost):
        requeue(world, hooks, losers[k], now, OUTRANKED)
    return wake


@inlined
def may_displace(world: World, row: int) -> bool:
    """Whether a waiting job could be more deserving than some that run."""
    job, state = world.jobs[row], world.state[0]
    if not state.bounded:
        return True
    if job.priority != state.worst_priority:
        return job.priority > state.worst_priority
    if job.key != state.worst_key:
        return job.key < state.worst_key
    if job.then != state.worst_then:
        return job.then < state.worst_then
    if job.arrival != state.worst_arrival:
        return job.arrival < state.worst_arrival
    return row < state.worst_row


@kernel
def rank_threatened(world: World, hooks: Hooks, now: float) -> Array:
    """The running jobs that the most deserving waiting one may displace, most deserving first.

    While keys only fall, who was more deserving when it was last asked is so still, and need not be asked again.
    """
    state, jobs = world.state[0], world.jobs
    top = jobs[world.waiting[state.first]]
    rows, seats, count, worst = np.empty(state.running, np.int32), np.empty(state.running, np.int32), 0, -1
    for i in range(state.running):
        row = world.running[i]
        ahead = jobs[row].priority > top.priority
        if state.bounded and (ahead or (jobs[row].priority == top.priority and jobs[row].key < top.key)):
            if worst < 0 or before(jobs, worst, row):
                worst = row
            continue
        touch(jobs[row], now)
        set_keys(world, hooks, row, now)
        rows[count], seats[count] = row, i
        count += 1
    threatened = rows[:count]
    sort_rows(jobs, threatened)
    for i in range(count):  # left nearly in order for the next time
        world.running[seats[i]] = rows[i]
        jobs[rows[i]].run_at = seats[i]
    if count > 0 and (worst < 0 or before(jobs, worst, threatened[count - 1])):
        worst = threatened[count - 1]
    set_bound(world, worst)
    return threatened


@inlined
def set_bound(world: World, worst: int) -> None:
    """Remembers who deserves least of those that run, for as long as their keys only fall."""
    state = world.state[0]
    state.bounded, state.worst_row = state.keys_hold, worst
    state.worst_priority = _BEYOND_ANY
    state.worst_key = state.worst_then = state.worst_arrival = -math.inf
    if worst >= 0:
        job = world.jobs[worst]
        state.worst_priority = job.priority
        state.worst_key, state.worst_then, state.worst_arrival = job.key, job.then, job.arrival


@kernel
def long_running(world: World, rows: Array, now: float) -> Array:
    """Those of the rows, in order, that this pass has not just started."""
    count = 0
    for row in rows:
        if world.jobs[row].started < now:
            rows[count] = row
            count += 1
    return rows[:count]


@inlined
def settle(world: World, row: int, losers: Array, lost: int) -> int:
    """A running job that offered its places takes them again, or is evicted; returns the number evicted."""
    head, gpus = world.jobs[row].head, world.jobs[row].gpus
    keeps = still_free(world, head) and not over_quota(world, row)
    charge(world, row, gpus)
    if keeps:
        claim_again(world, head)
        return lost
    leave(world, row)
    note(world, EVICT, row, OUTRANKED)
    losers[lost] = row
    return lost + 1
