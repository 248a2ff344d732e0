"""Preemption by order: at every event the jobs that run are those that go first."""

from __future__ import annotations

import numpy as np

from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import charge_quota, evict, requeue, start_job
from berth.schedule.asking import next_to_consider
from berth.schedule.claims import reclaim, return_devices, still_free
from berth.schedule.placement import exceeds_quota, find_place_for
from berth.schedule.policy import Hooks
from berth.schedule.queue import dequeue_at, precedes, smallest_demand
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Array, World
from berth.schedule.reservation import close_reservation, may_use_reserved, open_reservation, set_mask
from berth.schedule.segments import begin_walk
from berth.schedule.shape_choice import begin_choices, choose
from berth.schedule.start_waiting import (
    backfill,
    explain_wait,
    reservation_due,
    reserve_from_job,
    start_reason,
)
from berth.schedule.threatened import find_threatened, rank_next


@indirect
def preempt_by_order(world: World, hooks: Hooks, now: float) -> float:
    """Lets a waiting job that finds no place take devices of running jobs that go after it.

    Running jobs return their devices one after the other, last in the order first, while the waiting job goes
    before them. Then they take their devices again, in order, if these are still free; a job that can't is
    evicted. On a flat pool this equals the greedy walk over all jobs, waiting and running, without touching
    running jobs that nothing threatens.
    """
    jobs, waiting, state = world.jobs, world.waiting, world.state[0]
    total, wake, young = find_threatened(world, hooks, now)
    ranked, evicted, first = np.empty(total, np.int32), np.empty(total, np.int64), top_priority(world)
    # ranked[known:] are known, ranked[offered:] have returned their devices; ranked[settled:] have not taken them again
    known, offered, settled, count = total, total, total, 0
    i = level = considered = state.queue_start  # rows of the same priority begin at `level`
    state.search_epoch += 1
    begin_choices(world, now)
    begin_walk(world)
    while i < state.queue_stop:
        known = rank_up_to(world, hooks, ranked, known, offered - 1 if offered == settled else total, now)
        every = threatens(world, waiting[i], ranked, offered, settled)
        if not every and state.free + state.masked < smallest_demand(world):
            break
        ahead_of = ranked[settled] if settled < total else -1  # at the first that is not, this one settles
        priority, due = jobs[waiting[level]].priority, reservation_due(world, level, considered)
        i, passed_s = next_to_consider(world, hooks, i, every, priority, ahead_of, due, now)
        wake = min(wake, passed_s)
        if i == state.queue_stop:
            break
        row = waiting[i]
        while settled < total and not precedes(jobs[row], jobs[ranked[settled]]):
            count = settle(world, ranked[settled], evicted, count)
            settled += 1
        if young and jobs[row].priority < first:  # young jobs return their devices to higher priorities only
            count = settle_all(world, ranked[settled:], evicted, count)
            offered, settled = 0, total
        level, considered = reserve_from_job(world, i, level, considered, now)
        i += 1
        allowed_tier = jobs[row].asked_tier
        opens = may_use_reserved(world, row)
        open_reservation(world, opens)
        device_type, tier, group = find_or_choose(world, row, allowed_tier, opens, now)
        # once a job has taken its devices again no other returns its own: it would be asked twice
        if device_type < 0 and offered == settled:
            device_type, tier, group, known, offered = find_by_offers(
                world, hooks, row, ranked, known, offered, opens, now
            )
            settled = offered
        started = device_type >= 0
        if started:
            start_job(world, row, device_type, tier, group, now, start_reason(world, row, tier))
        close_reservation(world, opens, row, started)
        if not started and state.reserved_for >= 0 and not opens:
            started = backfill(world, row, allowed_tier, now)
        if started:
            dequeue_at(world, i - 1)
            level, considered = level + 1, considered + 1
        else:
            wake = min(wake, jobs[row].asked_until_s)
    count = settle_all(world, ranked[settled:], evicted, count)
    explain_waits(world, i)  # only now is it known what stays free
    requeue_all(world, hooks, evicted[:count], now)
    return min(wake, state.choice_wake_s) if len(world.shapes) > 0 else wake


@inlined
def top_priority(world: World) -> int:
    """The priority of the first waiting job."""
    return int(world.jobs[world.waiting[world.state[0].queue_start]].priority)


@kernel
def find_or_choose(
    world: World, row: int, allowed_tier: int, open_: bool, now: float
) -> tuple[int, int, int]:
    """(device type, tier, group) of a place for a job; one with alternatives takes the shape that is best now."""
    if world.jobs[row].shape_count <= 1:
        return find_place_for(world, row, allowed_tier, open_)
    tier, group = choose(world, row, open_, now)
    return min(tier, 0), tier, group


@kernel
def find_by_offers(
    world: World, hooks: Hooks, row: int, ranked: Array, known: int, offered: int, open_: bool, now: float
) -> tuple[int, int, int, int, int]:
    """(device type, tier, group, known, offered): a place for a job, once running jobs after it return theirs."""
    state, job = world.state[0], world.jobs[row]
    device_type, tier, group = -1, -1, -1
    while device_type < 0:
        known = rank_up_to(world, hooks, ranked, known, offered - 1, now)
        if not threatens(world, row, ranked, offered, offered):
            break
        offered -= 1
        offer_devices(world, ranked[offered], open_)
        if state.free >= job.gpus:
            state.search_epoch += 1  # a search that failed before may succeed now
            device_type, tier, group = find_place_for(world, row, job.asked_tier, open_)
    return device_type, tier, group, known, offered


@inlined
def rank_up_to(world: World, hooks: Hooks, ranked: Array, known: int, wanted: int, now: float) -> int:
    """Makes ranked[wanted:] known; returns from where on it is."""
    while known > max(0, wanted):
        known -= 1
        ranked[known] = rank_next(world, hooks, now)
    return known


@kernel
def explain_waits(world: World, stop: int) -> None:
    """Records why the jobs up to an index of the queue wait, if a program reads reasons."""
    if world.state[0].explained:
        for k in range(world.state[0].queue_start, stop):
            job = world.jobs[world.waiting[k]]
            explain_wait(world, world.waiting[k], job.asked_tier, job.asked_until_s)


@inlined
def threatens(world: World, row: int, ranked: Array, offered: int, settled: int) -> bool:
    """Whether a waiting job goes before the next running job that could return its devices."""
    may_offer = offered == settled and offered > 0
    return may_offer and precedes(world.jobs[row], world.jobs[ranked[offered - 1]])


@inlined
def offer_devices(world: World, row: int, open_: bool) -> None:
    """Lets a running job return its devices for the moment; they are reserved if its group is, unless that is open."""
    world.jobs[row].returned = 1
    return_devices(world, world.jobs[row].first_place)
    charge_quota(world, row, -world.jobs[row].gpus)
    if world.state[0].reserved_for >= 0 and not open_:
        set_mask(world, True)


@kernel
def settle_all(world: World, rows: Array, evicted: Array, count: int) -> int:
    """Settles jobs one after the other."""
    for row in rows:
        count = settle(world, row, evicted, count)
    return count


@kernel
def requeue_all(world: World, hooks: Hooks, rows: Array, now: float) -> None:
    """Puts evicted jobs into the queue."""
    for row in rows:
        requeue(world, hooks, row, now, ReasonCode.OUTRANKED)


@kernel
def settle(world: World, row: int, evicted: Array, count: int) -> int:
    """Lets a running job take its returned devices again, or evicts it; returns the number evicted.

    What it returned is its own also where it lies in a reserved group.
    """
    claim, reserved = world.jobs[row].first_place, world.state[0].reserved_for >= 0
    world.jobs[row].returned = 0
    open_reservation(world, reserved)
    keeps = still_free(world, claim) and not exceeds_quota(world, row)
    charge_quota(world, row, world.jobs[row].gpus)
    if keeps:
        reclaim(world, claim)
    close_reservation(world, reserved, row, False)
    if keeps:
        return count
    evict(world, row, ReasonCode.OUTRANKED)
    evicted[count] = row
    return count + 1
