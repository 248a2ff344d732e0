"""Making a near place out of scattered ones: running jobs step aside, to places no farther than their own.

A job may find enough free devices, but none near enough together. Then, inside the group that lacks fewest,
running jobs are looked for that have an equal or nearer place elsewhere. They move there if the wait that
this spares the blocked job is worth so many times what restoring them costs. Nobody is put back into the
queue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.compile import inlined, kernel, step
from berth.schedule.attempt import begin, book, note, over_quota, restore_s, seat_at, takes, tell_usual, touch
from berth.schedule.hold import by_end, hide, in_sight_of_some, kept_from, outranks_hold, soonest, unhide
from berth.schedule.place import fill, find, forget, offer_back, take
from berth.schedule.policy import Hooks
from berth.schedule.queue import close_gap
from berth.schedule.reasons import MADE_ROOM, NEAREST, STEPPED_ASIDE
from berth.schedule.shape import minds_shape, slow_by_shape, thinness_of
from berth.schedule.view import MOVE, Array, World
from berth.schedule.walk import smallest_demand

_TRIED_JOBS = 8  # blocked jobs for whom room is looked for in one pass
_TRIED_GROUPS = 6  # groups looked at for each
_MOST_MOVES = 16  # running jobs that move for one
_REST_S = 300.0  # nobody moves again sooner


@step
def defragment(world: World, hooks: Hooks, now: float) -> None:
    """For the first blocked jobs, in order, that would fit if what is free lay together."""
    state, waiting = world.state[0], world.waiting
    if in_sight_of_some(world) < smallest_demand(world):
        return
    rows = by_end(world, now)
    demand_failed = np.zeros(len(world.demands), np.bool_)
    tried, kept, i = 0, state.first, state.first
    while i < state.last and tried < _TRIED_JOBS and in_sight_of_some(world) >= smallest_demand(world):
        row = waiting[i]
        job = world.jobs[row]
        i += 1
        done = False
        opens = outranks_hold(world, row)
        if opens:
            unhide(world)
        if job.gpus <= state.free and not demand_failed[job.demand] and not over_quota(world, row):
            tried += 1
            done = room_by_moving(world, hooks, row, rows, now)
            demand_failed[job.demand] = not done
        if opens and done and state.held == row:
            state.held = -1
        elif opens:
            hide(world)
        if not done:
            waiting[kept] = row
            kept += 1
    close_gap(world, kept, i)


@kernel
def room_by_moving(world: World, hooks: Hooks, row: int, rows: Array, now: float) -> bool:
    """Starts one blocked job at its nearest tier, if it pays that others move."""
    job, state = world.jobs[row], world.state[0]
    when, _, _, _ = soonest(world, row, job.floor, rows, now)
    worth = (when - now) / state.defragment
    if worth < restore_s(world, 1):
        return False
    tell_usual(world, row)
    job.bent = 1.0
    if not hooks.spread(job, job.floor, when - now, now, world.my[0]):
        return False
    first, last = job.kind, job.kind + 1
    if job.kind < 0:
        first, last = 0, world.state[0].kinds
    for kind in range(first, last):
        if not takes(job, kind):
            continue
        passed = np.zeros(world.groups.shape[1], np.bool_)
        for _ in range(_TRIED_GROUPS):
            group = nearly_free(world, row, kind, passed)
            if group < 0:
                break
            passed[group] = True
            moves = world.groups[job.floor, group].free[kind] < job.gpus  # else room came by evictions
            if vacate(world, row, kind, group, worth, now):
                begin(world, row, kind, job.floor, group, now, MADE_ROOM if moves else NEAREST)
                job.saves = when - now
                return True
    return False


@kernel
def nearly_free(world: World, row: int, kind: int, passed: Array) -> int:
    """The group of a job's nearest tier, not passed yet, that could hold it and has most devices free."""
    gpus, tier = world.jobs[row].gpus, world.jobs[row].floor
    best, most, at = -1, -1, 0
    while at < len(world.hosts):
        number = world.hosts[at].group[tier]
        group = world.groups[tier, number]
        free = group.free[kind]
        if free > most and not passed[number] and size_of(world, row, number, kind) >= gpus:
            best, most = number, free
        at = group.stop
    return best


@kernel
def size_of(world: World, row: int, group: int, kind: int) -> int:
    """Devices of one type in a group of a job's nearest tier that are up and not held for another."""
    tier, total = world.jobs[row].floor, 0
    for at in range(world.groups[tier, group].start, world.groups[tier, group].stop):
        host = world.hosts[at]
        if host.kind == kind and not host.down and not kept_from(world, row, host):
            total += host.size
    return total


@kernel
def vacate(world: World, row: int, kind: int, group: int, worth: float, now: float) -> bool:
    """Moves running jobs out of a group until it holds the gang; if that can't be, nothing has happened."""
    tier = world.jobs[row].floor
    need = world.jobs[row].gpus - world.groups[tier, group].free[kind]
    victims, inside = movable(world, row, kind, group, now)
    new_heads = np.empty(_MOST_MOVES, np.int64)
    new_tiers = np.empty(_MOST_MOVES, np.int64)
    movers = np.empty(_MOST_MOVES, np.int64)
    count, cost = 0, 0.0
    start, stop = world.groups[tier, group].start, world.groups[tier, group].stop
    free = np.zeros(stop - start, np.int64)
    for at in range(start, stop):
        if world.hosts[at].kind == kind:
            free[at - start] = world.hosts[at].free
            take(world, at, free[at - start])
    while need > 0 and count < _MOST_MOVES:
        pick = next_victim(inside, need)
        if pick < 0:
            break
        victim = world.jobs[victims[pick]]
        gives, inside[pick] = inside[pick], 0
        own = restore_s(world, victim.gpus)
        if cost + own > worth:
            continue
        even = minds_shape(victim, world.state[0].shape)
        reach = victim.widest if world.state[0].farther else victim.tier
        new_tier, new_group = find(world, kind, victim.gpus, victim.floor, reach, even)
        if new_tier < 0:
            continue
        head = fill(world, kind, new_tier, new_group, victim.gpus, even)
        own += victim.remaining * max(
            0.0, slow_on(world, victim, head, new_tier) - slow_on(world, victim, victim.head, victim.tier)
        )
        if cost + own > worth:
            offer_back(world, head)
            forget(world, head)
            continue
        new_heads[count], new_tiers[count], movers[count] = head, new_tier, victims[pick]
        count += 1
        cost += own
        need -= gives
    for at in range(start, stop):
        take(world, at, -free[at - start])
    for k in range(count):
        if need > 0:
            offer_back(world, new_heads[k])
            forget(world, new_heads[k])
        else:
            step_aside(world, movers[k], new_heads[k], new_tiers[k], now)
    return need <= 0


@inlined
def slow_on(world: World, job: Any, head: int, tier: int) -> float:
    """Slow-down of a job on these places, by tier and shape."""
    if job.shape_s[2] > 1.0 + world.state[0].shape and tier > 0:
        return job.slow[tier] * slow_by_shape(job, thinness_of(world, head))
    return job.slow[tier]


@kernel
def movable(world: World, row: int, kind: int, group: int, now: float) -> tuple[Array, Array]:
    """Running jobs that may be moved for `row`, and what each holds inside a group that it may use.

    Nobody moves who has not been still for a while, nor for somebody of lower priority.
    """
    state, tier = world.state[0], world.jobs[row].floor
    rows = np.empty(state.running, np.int64)
    inside = np.empty(state.running, np.int64)
    count = 0
    for i in range(state.running):
        job = world.jobs[world.running[i]]
        if now - job.started < _REST_S or job.priority > world.jobs[row].priority:
            continue
        entry, held = job.head, 0
        while entry >= 0:
            place = world.places[entry]
            host = world.hosts[place.host]
            usable = host.kind == kind and not host.down and not kept_from(world, row, host)
            if usable and host.group[tier] == group:
                held += place.count
            entry = place.next
        if held > 0:
            rows[count], inside[count] = world.running[i], held
            count += 1
    return rows[:count], inside[:count]


@kernel
def next_victim(inside: Array, need: int) -> int:
    """The smallest that suffices, else the largest; -1: nobody is left."""
    enough, largest = -1, -1
    for k in range(len(inside)):
        if inside[k] <= 0:
            continue
        if inside[k] >= need and (enough < 0 or inside[k] < inside[enough]):
            enough = k
        if largest < 0 or inside[k] > inside[largest]:
            largest = k
    return enough if enough >= 0 else largest


@kernel
def step_aside(world: World, row: int, head: int, tier: int, now: float) -> None:
    """A running job goes on at places that were taken for it."""
    job = world.jobs[row]
    touch(job, now)
    job.at_tier[job.tier] += (now - job.started) * job.gpus
    book(job)
    offer_back(world, job.head)
    forget(world, job.head)
    seat_at(world, row, head, tier, now, STEPPED_ASIDE)
    job.moves += 1
    note(world, MOVE, row, STEPPED_ASIDE)
