"""Preemption by order: at every event the jobs that run are those that go first."""

from __future__ import annotations

from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import charge_quota, evict, requeue, start_job
from berth.schedule.asking import next_to_consider
from berth.schedule.claims import reclaim, return_devices, still_free
from berth.schedule.placement import exceeds_quota, find_place_for
from berth.schedule.policy import Hooks
from berth.schedule.queue import dequeue_at, precedes, smallest_demand
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import Action, World
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
from berth.schedule.threatened import find_threatened, pop_last


@indirect
def preempt_by_order(world: World, hooks: Hooks, now: float) -> float:
    """Lets a waiting job that finds no place take devices of running jobs that go after it.

    Running jobs return their devices one after the other, last in the order first, while the waiting job goes
    before them. Then they take their devices again, in order, if these are still free; a job that can't is
    evicted. On a flat pool this equals the greedy walk over all jobs, waiting and running, without touching
    running jobs that nothing threatens.
    """
    jobs, waiting, state, search = world.jobs, world.waiting, world.state[0], world.victim_search[0]
    total, wake, young = find_threatened(world, hooks, now)
    ranked, first, decided = world.victims, jobs[waiting[state.queue_start]].priority, state.decisions
    # ranked[known:] are known, ranked[offered:] have returned their devices; ranked[settled:] have not taken them again
    search.known = search.offered = search.settled = total
    i = level = considered = state.queue_start  # rows of the same priority begin at `level`
    state.search_epoch += 1
    begin_choices(world, now)
    begin_walk(world)
    while i < state.queue_stop:
        every = threatens(world, hooks, waiting[i], now)
        if not every and state.free + state.masked < smallest_demand(world):
            break
        # at the first that is not ahead of this one, it settles
        ahead_of = ranked[search.settled] if search.settled < total else -1
        priority, due = jobs[waiting[level]].priority, reservation_due(world, level, considered)
        i, passed_s = next_to_consider(world, hooks, i, every, priority, ahead_of, due, now)
        wake = min(wake, passed_s)
        if i == state.queue_stop:
            break
        row = waiting[i]
        while search.settled < total and not precedes(jobs[row], jobs[ranked[search.settled]]):
            settle_next(world)
        if young and jobs[row].priority < first:  # young jobs return their devices to higher priorities only
            settle_all(world, total)
            search.offered = 0
        level, considered = reserve_from_job(world, i, level, considered, now)
        i += 1
        allowed_tier = jobs[row].asked_tier
        opens = may_use_reserved(world, row)
        open_reservation(world, opens)
        device_type, tier, group = find_or_choose(world, row, allowed_tier, opens, now)
        # once a job has taken its devices again no other returns its own: it would be asked twice
        if device_type < 0 and search.offered == search.settled:
            device_type, tier, group = find_by_offers(world, hooks, row, opens, now)
        started = device_type >= 0
        if started:
            start_job(world, row, device_type, tier, group, now, start_reason(world, row, tier))
        close_reservation(world, opens, row, started)
        if not started and world.reservation[0].holder >= 0 and not opens:
            started = backfill(world, row, allowed_tier, now)
        if started:
            dequeue_at(world, i - 1)
            level, considered = level + 1, considered + 1
        else:
            wake = min(wake, jobs[row].asked_until_s)
    settle_all(world, total)
    explain_waits(world, i)  # only now is it known what stays free
    requeue_evicted(world, hooks, decided, now)
    return min(wake, world.shape_choice[0].wake_s) if len(world.shapes) > 0 else wake


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
def find_by_offers(world: World, hooks: Hooks, row: int, open_: bool, now: float) -> tuple[int, int, int]:
    """(device type, tier, group): a place for a job, once running jobs that go after it return their devices."""
    state, search, job = world.state[0], world.victim_search[0], world.jobs[row]
    device_type, tier, group = -1, -1, -1
    while device_type < 0 and threatens(world, hooks, row, now):
        search.offered = search.settled = search.offered - 1
        offer_devices(world, world.victims[search.offered], open_)
        if state.free >= job.gpus:
            state.search_epoch += 1  # a search that failed before may succeed now
            device_type, tier, group = find_place_for(world, row, job.asked_tier, open_)
    return device_type, tier, group


@kernel
def explain_waits(world: World, stop: int) -> None:
    """Records why the jobs up to an index of the queue wait, if a program reads reasons."""
    if world.state[0].explained:
        for k in range(world.state[0].queue_start, stop):
            job = world.jobs[world.waiting[k]]
            explain_wait(world, world.waiting[k], job.asked_tier, job.asked_until_s)


@inlined
def threatens(world: World, hooks: Hooks, row: int, now: float) -> bool:
    """Whether a waiting job goes before the next running job that could return its devices."""
    search = world.victim_search[0]
    if search.offered != search.settled or search.offered == 0:
        return False
    if search.known == search.offered:
        search.known -= 1
        world.victims[search.known] = pop_last(world, hooks, now)
    return precedes(world.jobs[row], world.jobs[world.victims[search.offered - 1]])


@inlined
def offer_devices(world: World, row: int, open_: bool) -> None:
    """Lets a running job return its devices for the moment; they are reserved if its group is, unless that is open."""
    world.jobs[row].returned = 1
    return_devices(world, world.jobs[row].first_place)
    charge_quota(world, row, -world.jobs[row].gpus)
    if world.reservation[0].holder >= 0 and not open_:
        set_mask(world, True)


@kernel
def settle_all(world: World, total: int) -> None:
    """Settles jobs one after the other."""
    while world.victim_search[0].settled < total:
        settle_next(world)


@kernel
def settle_next(world: World) -> None:
    """Lets a running job take its returned devices again, or evicts it.

    What it returned is its own also where it lies in a reserved group.
    """
    search = world.victim_search[0]
    row = world.victims[search.settled]
    claim, reserved = world.jobs[row].first_place, world.reservation[0].holder >= 0
    world.jobs[row].returned = 0
    open_reservation(world, reserved)
    keeps = still_free(world, claim) and not exceeds_quota(world, row)
    charge_quota(world, row, world.jobs[row].gpus)
    if keeps:
        reclaim(world, claim)
    close_reservation(world, reserved, row, False)
    if not keeps:
        evict(world, row, ReasonCode.OUTRANKED)
    search.settled += 1


@kernel
def requeue_evicted(world: World, hooks: Hooks, decided: int, now: float) -> None:
    """Puts the jobs that were evicted since a number of decisions into the queue."""
    for decision in world.decisions[decided : world.state[0].decisions]:
        if decision.what == Action.EVICT:
            requeue(world, hooks, decision.job, now, ReasonCode.OUTRANKED)
