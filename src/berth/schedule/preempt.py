"""Moving running jobs: up, when a nearer place opens; out of the way, when another gains more by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.compile import inlined, kernel, step
from berth.schedule.attempt import (
    begin,
    book,
    end,
    find_for,
    note,
    over_quota,
    requeue,
    restore_s,
    seat,
    takes,
    touch,
)
from berth.schedule.hold import hide, kept_from, outranks_hold, unhide
from berth.schedule.lookahead import nearer
from berth.schedule.place import claim_again, find, forget, offer_back
from berth.schedule.policy import Hooks
from berth.schedule.queue import step_out
from berth.schedule.reasons import MADE_ROOM, MADE_WAY, MOVED_UP, NEAREST
from berth.schedule.shape import best_shape, free_of, minds_shape, roundest_at, slow_by_shape, thinness_of
from berth.schedule.view import EVICT, MOVE, Array, World

_TRIED = 4  # blocked jobs for whom room is looked for in one pass


@step
def move_up(world: World, hooks: Hooks, now: float) -> None:
    """A spread job takes a nearer place that has opened, if that saves enough of what moving costs."""
    state = world.state[0]
    for i in range(state.running):
        row = world.running[i]
        job = world.jobs[row]
        if job.tier == 0 or job.started == now:
            continue
        if job.tier <= job.floor:
            round_off(world, hooks, row, now)
            continue
        touch(job, now)
        kind, tier, group = nearer(world, row, now)
        if tier < 0:
            round_off(world, hooks, row, now)
            continue
        saves = hooks.gain(job, job.slow[job.tier], job.slow[tier], now, world.my[0])
        if saves <= state.move_up * restore_s(world, job.gpus):
            continue
        job.at_tier[job.tier] += (now - job.started) * job.gpus
        book(job)
        offer_back(world, job.head)
        forget(world, job.head)
        # with its own devices in sight there may be a place nearer still, and filling would find it
        tier, group = find(world, kind, job.gpus, job.floor, tier, minds_shape(job, state.shape))
        seat(world, row, kind, tier, group, now, MOVED_UP)
        job.saves = saves
        job.moves += 1
        note(world, MOVE, row, MOVED_UP)


@kernel
def round_off(world: World, hooks: Hooks, row: int, now: float) -> None:
    """A gang in a rack takes a better shape there or in another, if that saves enough; its own devices count."""
    job, state = world.jobs[row], world.state[0]
    if job.tier != 1 or not minds_shape(job, state.shape):
        return
    mine = thinness_of(world, job.head)
    here = slow_by_shape(job, mine)
    if here <= 1.0 + state.shape:
        return
    touch(job, now)
    kind = world.hosts[world.places[job.head].host].kind
    offer_back(world, job.head)
    group = roundest_at(world, kind, job.gpus, 1)
    saves = 0.0
    if group >= 0:
        x, _, _ = best_shape(free_of(world, kind, 1, group), job.gpus)
        if x < mine:
            there = slow_by_shape(job, x)
            saves = hooks.gain(job, job.slow[1] * here, job.slow[1] * there, now, world.my[0])
    if saves <= state.move_up * restore_s(world, job.gpus):
        claim_again(world, job.head)
        return
    job.at_tier[job.tier] += (now - job.started) * job.gpus
    book(job)
    forget(world, job.head)
    seat(world, row, kind, 1, group, now, MOVED_UP)
    job.saves = saves
    job.moves += 1
    note(world, MOVE, row, MOVED_UP)


@step
def make_room(world: World, hooks: Hooks, now: float) -> float:
    """For the first few blocked jobs: evict, inside one group, those whom it costs least, if it pays.

    Returns when one of those who may not be moved yet may be, if it is worth it to look again then.
    """
    state = world.state[0]
    tried, i, wake = 0, state.first, math.inf
    while i < state.last and tried < _TRIED:
        row = world.waiting[i]
        job = world.jobs[row]
        here = job.slow[min(job.widest, job.floor + 1)]
        gain = hooks.gain(job, here, job.slow[job.floor], now, world.my[0])
        i += 1
        if gain <= state.margin * restore_s(world, job.gpus) or over_quota(world, row):
            continue
        tried += 1
        mine = state.held == row  # what is held for this very job it may use
        opens = mine or outranks_hold(world, row)
        if opens:
            unhide(world)
        if take_left_over(world, i - 1, now) or take_room(world, hooks, i - 1, gain, now):
            i = state.first  # the victims wait now too: the queue is not what it was
            if mine:
                state.held = -1
            elif opens:
                hide(world)
            continue
        wake = min(wake, next_movable(world, hooks, row, gain, now))
        if opens:
            hide(world)
    return wake


@kernel
def next_movable(world: World, hooks: Hooks, row: int, gain: float, now: float) -> float:
    """When the first of those whom it would pay to move for `row` may be moved; cost is taken as of now."""
    state, job = world.state[0], world.jobs[row]
    wake = math.inf
    for i in range(state.running):
        victim = world.jobs[world.running[i]]
        rests = rests_until(world, victim)
        if not now < rests < wake:
            continue
        touch(victim, now)
        cost = hooks.cost(victim, job, now, world.my[0]) + restore_s(world, victim.gpus)
        if gain > state.margin * cost and takes(job, world.hosts[world.places[victim.head].host].kind):
            wake = rests
    return wake


@inlined
def rests_until(world: World, victim: Any) -> float:
    """Nobody is moved before it has worked for a while, nor twice within a time.

    Restoring is no work: counted as such, gangs could take each other's place for ever and get nothing done.
    """
    state = world.state[0]
    rests = max(victim.started, victim.stall) + state.min_run_s
    return max(rests, victim.evicted + state.budget_s) if victim.evictions > 0 else rests


@kernel
def take_left_over(world: World, at: int, now: float) -> bool:
    """Somebody who made room for another may have left more than that one needed."""
    row, state = world.waiting[at], world.state[0]
    state.passes += 1
    kind, tier, group = find_for(world, row, world.jobs[row].floor, False)
    if kind < 0:
        return False
    begin(world, row, kind, tier, group, now, NEAREST)
    step_out(world, at)
    return True


@kernel
def take_room(world: World, hooks: Hooks, at: int, gain: float, now: float) -> bool:
    """Room among the devices of one type, the first that has it."""
    job = world.jobs[world.waiting[at]]
    first, last = job.kind, job.kind + 1
    if job.kind < 0:
        first, last = 0, world.state[0].kinds
    found, kind = False, first
    while not found and kind < last:
        found = takes(job, kind) and room_for(world, hooks, at, kind, gain, now)
        kind += 1
    return found


@kernel
def room_for(world: World, hooks: Hooks, at: int, kind: int, gain: float, now: float) -> bool:
    """Finds the cheapest victims inside one group of the job's nearest tier, and moves them if it pays."""
    row, state = world.waiting[at], world.state[0]
    job = world.jobs[row]
    victims, costs = candidates(world, hooks, row, kind, now)
    group, looked_at, cost = cheapest_group(world, row, kind, victims, costs)
    if group < 0 or over_quota(world, row):
        return False
    if gain <= state.margin * (cost + restore_s(world, job.gpus) * (job.first_start >= 0)):
        return False
    moved = np.empty(looked_at, np.int64)
    count = 0
    for k in range(looked_at):
        if holds_in(world, row, victims[k], job.floor, group):
            note(world, EVICT, victims[k], MADE_WAY)
            end(world, victims[k])
            moved[count] = victims[k]
            count += 1
    begin(world, row, kind, job.floor, group, now, MADE_ROOM)
    job.saves = gain
    step_out(world, at)
    for k in range(count):
        requeue(world, hooks, moved[k], now, MADE_WAY)
    return True


@kernel
def candidates(world: World, hooks: Hooks, row: int, kind: int, now: float) -> tuple[Array, Array]:
    """Running jobs that may be moved for `row`, with the cost of each: cheapest or least deserving first."""
    state, job = world.state[0], world.jobs[row]
    rows = np.empty(state.running, np.int64)
    costs, ranks = np.empty(state.running), np.empty(state.running)
    priorities = np.zeros(state.running, np.int64)
    count = 0
    for i in range(state.running):
        victim = world.jobs[world.running[i]]
        if now < rests_until(world, victim):
            continue
        if victim.priority > job.priority or victim.started == now:
            continue
        if world.hosts[world.places[victim.head].host].kind != kind:
            continue
        touch(victim, now)
        cost = hooks.cost(victim, job, now, world.my[0]) + restore_s(world, victim.gpus)
        if cost < math.inf:
            rows[count], costs[count], ranks[count] = world.running[i], cost, cost
            if state.by_rank:
                ranks[count], priorities[count] = -hooks.order(victim, now, world.my[0]), victim.priority
            count += 1
    order = np.argsort(ranks[:count], kind="mergesort")
    order = order[np.argsort(priorities[:count][order], kind="mergesort")]
    return rows[:count][order], costs[:count][order]


@kernel
def cheapest_group(world: World, row: int, kind: int, victims: Array, costs: Array) -> tuple[int, int, float]:
    """(group, how many victims to look at, their cost) of the group that is emptied first; group -1: none."""
    job = world.jobs[row]
    size = world.groups.shape[1]
    free, total = np.zeros(size, np.int64), np.zeros(size)
    for at in range(len(world.hosts)):
        host = world.hosts[at]
        if host.kind == kind and not kept_from(world, row, host):
            free[host.group[job.floor]] += host.free
    for k in range(len(victims)):
        entry, last = world.jobs[victims[k]].head, -1
        while entry >= 0:
            place = world.places[entry]
            host = world.hosts[place.host]
            number = host.group[job.floor]
            if not host.down and host.kind == kind and not kept_from(world, row, host):
                free[number] += place.count
                if number != last:
                    total[number] += costs[k]
                    last = number
                if free[number] >= job.gpus:
                    return number, k + 1, total[number]
            entry = place.next
    return -1, 0, 0.0


@kernel
def holds_in(world: World, row: int, victim: int, tier: int, group: int) -> bool:
    """Whether a running job holds devices inside a group that `row` could use."""
    entry = world.jobs[victim].head
    while entry >= 0:
        place = world.places[entry]
        host = world.hosts[place.host]
        if host.group[tier] == group and not host.down and not kept_from(world, row, host):
            return True
        entry = place.next
    return False
