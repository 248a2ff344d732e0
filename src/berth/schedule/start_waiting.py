"""Starting waiting jobs on free devices: every job in order gets the nearest place it accepts, or a reason."""

from __future__ import annotations

import math

from berth.native.deferred import deferred
from berth.native.kernels import indirect, inlined, kernel
from berth.schedule.allocation import start_job
from berth.schedule.asking import next_to_consider, wake_time_of
from berth.schedule.balance import best_shape, free_per_host, sensitive_to_imbalance, slowdown_by_imbalance
from berth.schedule.placement import (
    accepts_device_type,
    device_types_of,
    exceeds_quota,
    find_place_for,
    nearest_place,
    too_large,
)
from berth.schedule.policy import Hooks
from berth.schedule.progress import restore_cost_s
from berth.schedule.queue import dequeue_at, set_order, smallest_demand, sort_rows
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import World
from berth.schedule.reservation import (
    EVERY_JOB,
    cancel_reservation,
    close_reservation,
    may_use_reserved,
    open_reservation,
    reserve_soonest,
)
from berth.schedule.rules import Blocked, Preempt
from berth.schedule.segments import begin_walk
from berth.schedule.shape_choice import begin_choices, choose
from berth.schedule.shapes import find_vector, has_devices


@indirect
def refresh_order(world: World, hooks: Hooks, now: float) -> float:
    """Sorts the queue again, for policies whose order changes while a job waits.

    Returns when the policy wants to be asked again, also about jobs that the pass does not reach.
    """
    waiting, wake = world.waiting[world.state[0].queue_start : world.state[0].queue_stop], math.inf
    for row in waiting:
        set_order(world, hooks, row, now)
        wake = min(wake, wake_time_of(world, hooks, row, now))
    sort_rows(world.jobs, waiting)
    return wake


@deferred
def sort_by_order(world: World, hooks: Hooks, now: float) -> None:
    """Computes the order of all waiting jobs and sorts the queue."""
    waiting = world.waiting[world.state[0].queue_start : world.state[0].queue_stop]
    for row in waiting:
        set_order(world, hooks, row, now)
    sort_rows(world.jobs, waiting)


@indirect
def refresh_overdue_order(world: World, hooks: Hooks, now: float) -> float:
    """Sorts the queue again when a job has waited `reorder_after_s`; returns inf."""
    state, reorder_after_s = world.state[0], world.rules[0].reorder_after_s
    waiting = world.waiting[state.queue_start : state.queue_stop]
    state.next_reorder_s = now + max(1.0, reorder_after_s)
    for row in waiting:
        due = world.jobs[row].queued_since_s + reorder_after_s
        if due <= now:
            set_order(world, hooks, row, now)
            world.jobs[row].answers = -1
        else:
            state.next_reorder_s = min(state.next_reorder_s, due)
    sort_rows(world.jobs, waiting)
    world.walk[0].answers += 1  # segments have other jobs now
    return math.inf


@indirect
def start_waiting(world: World, hooks: Hooks, now: float, blocked: int) -> float:
    """Starts waiting jobs that fit; `blocked` is what a job that does not fit means for those behind it.

    Returns when to look again if nothing happens before.
    """
    waiting, state, reservation = world.waiting, world.state[0], world.reservation[0]
    by_order = world.rules[0].preempt == Preempt.BY_ORDER
    state.search_epoch += 1
    begin_choices(world, now)
    begin_walk(world)
    wake, i = math.inf, state.queue_start
    smallest = smallest_demand(world)
    level, considered = i, i  # rows of the same priority begin at `level`
    ranks_by_cluster = world.rules[0].ranks_by_cluster
    while i < state.queue_stop and state.free + state.masked >= smallest:
        priority = world.jobs[waiting[level]].priority
        due = reservation_due(world, level, considered)
        i, passed_s = next_to_consider(world, hooks, i, blocked != Blocked.SKIP, priority, -1, due, now)
        wake = min(wake, passed_s)
        if i == state.queue_stop:
            break
        row = waiting[i]
        if blocked == Blocked.SKIP:
            level, considered = reserve_from_job(world, i, level, considered, now)
        allowed_tier = world.jobs[row].asked_tier
        started = start_in_order(world, row, allowed_tier, now)
        if not started and reservation.holder >= 0 and not may_use_reserved(world, row):
            started = backfill(world, row, allowed_tier, now)
        i += 1
        if started:
            dequeue_at(world, i - 1)
            level, considered, smallest = level + 1, considered + 1, smallest_demand(world)
            if ranks_by_cluster:  # its user holds more now: consider all jobs again, in their new order
                state.search_epoch += 1
                sort_by_order(world, hooks, now)
                i = level = considered = state.queue_start
            continue
        wake = min(wake, world.jobs[row].asked_until_s)
        if state.explained:
            explain_wait(world, row, allowed_tier, world.jobs[row].asked_until_s)
        # a job over its quota blocks only jobs of the same quota; by order it may still preempt one of them
        if blocked != Blocked.SKIP and not by_order and exceeds_quota(world, row):
            world.quotas[world.jobs[row].quota].closed = state.search_epoch
        elif blocked == Blocked.STOP:
            break
        elif blocked == Blocked.BACKFILL and reservation.holder < 0:
            reserve_soonest(world, row, allowed_tier, EVERY_JOB, now)
    return min(wake, world.shape_choice[0].wake_s) if len(world.shapes) > 0 else wake


@inlined
def start_in_order(world: World, row: int, allowed_tier: int, now: float) -> bool:
    """Starts a job if there is a place for it that is not reserved for another."""
    if world.jobs[row].shape_count > 1:
        return start_chosen(world, row, now)
    rules, state, job = world.rules[0], world.state[0], world.jobs[row]
    own, opens = world.reservation[0].holder == row, may_use_reserved(world, row)
    if opens and (job.gpus > state.free + state.masked or too_large(world, job, allowed_tier)):
        return False  # without looking through the reserved group
    open_reservation(world, opens)
    device_type, tier, group = find_place_for(world, row, allowed_tier, opens)
    started = device_type >= 0
    if started and tier == 1 and rules.relax_locality and not own:
        # whether it takes a place with a bad shape is decided by relax_locality
        slowdown = imbalance_slowdown_in(world, row, device_type, group)
        started = slowdown <= 1.0 + rules.imbalance_tolerance
    if started:
        start_job(world, row, device_type, tier, group, now, start_reason(world, row, tier))
    close_reservation(world, opens, row, started)
    return started


@deferred
def start_chosen(world: World, row: int, now: float) -> bool:
    """Starts a job in the shape and place that are best for all, unless waiting for another is."""
    opens = may_use_reserved(world, row)
    open_reservation(world, opens)
    tier, group = choose(world, row, opens, now)
    if tier >= 0:
        start_job(world, row, world.jobs[row].device_type, tier, group, now, ReasonCode.CHOSEN)
    close_reservation(world, opens, row, tier >= 0)
    return tier >= 0


@inlined
def reserve_from_job(world: World, at: int, level: int, considered: int, now: float) -> tuple[int, int]:
    """Reserves a place for a higher priority that waits, before the job at one index of the queue is considered.

    Returns where jobs of its priority begin, and how far down the queue a place was looked for. Where order preempts,
    a job that gives way delays no other.
    """
    job, by_order = world.jobs[world.waiting[at]], world.rules[0].preempt == Preempt.BY_ORDER
    if job.priority < world.jobs[world.waiting[level]].priority:
        level = at
    if considered < level and not (by_order and job.preemptible):
        considered = reserve_from_lower(world, considered, level, now)
    return level, considered


@inlined
def reservation_due(world: World, level: int, considered: int) -> bool:
    """Whether the next job that can't be preempted makes a place to be looked for, for a higher priority that waits."""
    reservation = world.reservation[0]
    if considered >= level or world.rules[0].preempt != Preempt.BY_ORDER:
        return False
    priority = world.jobs[world.waiting[considered]].priority
    return reservation.holder < 0 or world.jobs[reservation.holder].priority < priority


@deferred
def reserve_from_lower(world: World, considered: int, stop: int, now: float) -> int:
    """Reserves a place for the first job that does not fit, before jobs of lower priority are considered.

    Jobs of equal priority may overtake each other where the policy says so; a job of lower priority only where
    that does not delay the first. A place that is held for a lower priority is given up for it. Returns how far down
    the queue a place was looked for: a job that finds none now finds none later in this pass.
    """
    state, reservation = world.state[0], world.reservation[0]
    while considered < stop:
        row = world.waiting[considered]
        job = world.jobs[row]
        if reservation.holder >= 0 and world.jobs[reservation.holder].priority >= job.priority:
            break
        considered += 1
        if not exceeds_quota(world, row):
            if reservation.holder >= 0:
                cancel_reservation(world)
                state.search_epoch += 1  # a search that failed before may succeed now
            tier = job.waits_for_tier if job.other_shape >= 0 else job.asked_tier
            reserve_soonest(world, row, tier, job.priority, now)
    return considered


@deferred
def backfill(world: World, row: int, allowed_tier: int, now: float) -> bool:
    """Starts a job on reserved devices if it ends before they are needed, or if they will not be needed."""
    job, state, reservation = world.jobs[row], world.state[0], world.reservation[0]
    restore_s = restore_cost_s(world, job.gpus) if job.first_start_s >= 0 else 0.0
    in_time = now + restore_s + job.estimated_remaining_s * job.slowdown[allowed_tier] <= reservation.until_s
    if job.gpus > state.free + state.masked or (not in_time and job.gpus > reservation.spare):
        return False
    if too_large(world, job, allowed_tier):
        return False
    open_reservation(world, True)
    device_type, tier, group = find_place_for(world, row, allowed_tier, True)
    if device_type >= 0:
        start_job(world, row, device_type, tier, group, now, ReasonCode.BACKFILLED)
        if not in_time:
            reservation.spare -= job.gpus
    close_reservation(world, True, row, device_type >= 0)
    return device_type >= 0


@inlined
def start_reason(world: World, row: int, tier: int) -> int:
    """Why a place was taken: the nearest there can be, or a farther one."""
    return ReasonCode.NEAREST if tier == world.jobs[row].nearest_tier else ReasonCode.SPREAD


@deferred
def imbalance_slowdown_in(world: World, row: int, device_type: int, group: int) -> float:
    """Slowdown of a gang by the best shape that a rack has for it now."""
    job = world.jobs[row]
    if not sensitive_to_imbalance(world, job):
        return 1.0
    x, _, _ = best_shape(free_per_host(world, device_type, 1, group), job.gpus)
    return slowdown_by_imbalance(job, x)


# Why a job waits


@deferred
def explain_wait(world: World, row: int, allowed_tier: int, wake: float) -> None:
    """Records why a job waits, with the numbers behind it."""
    job, state = world.jobs[row], world.state[0]
    if job.other_shape >= 0 and job.explained_s == state.now:
        return  # shape_choice.py has said what it waits for
    job.waits_for_tier, job.until_s, job.explained_s = allowed_tier, wake, state.now
    wider = min(allowed_tier + 1, job.widest_tier)
    job.saves_s = job.estimated_remaining_s * (job.slowdown[wider] - job.slowdown[allowed_tier])
    if exceeds_quota(world, row):
        quota = world.quotas[job.quota]
        job.reason = ReasonCode.OVER_QUOTA if quota.used + job.gpus > quota.allowed else ReasonCode.BEHIND
        return
    top = world.groups.shape[0] - 1
    reserved = world.reservation[0].holder >= 0 and state.masked > 0 and not may_use_reserved(world, row)
    if reserved and fits_with_reserved(world, row, allowed_tier):
        job.reason = ReasonCode.HELD_FOR_OTHER
    elif world.rules[0].link_ratio < math.inf and nearest_place(world, row, allowed_tier)[0] >= 0:
        job.reason = ReasonCode.LINKS_BUSY
    elif job.vector:
        held = state.masked > 0
        open_reservation(world, held)
        enough = has_devices(world.groups[top, 0].free, world.shapes[job.shape].need)
        close_reservation(world, held, row, False)
        job.reason = ReasonCode.TOO_SPREAD if enough else ReasonCode.NO_ROOM
    elif most_free_for(world, row) >= job.gpus or (reserved and fits_with_reserved(world, row, top)):
        job.reason = ReasonCode.TOO_SPREAD
    else:
        job.reason = ReasonCode.NO_ROOM


@kernel
def fits_with_reserved(world: World, row: int, tier: int) -> bool:
    """Whether a group of a tier around the reserved devices would hold a job if they were not reserved."""
    reservation, job = world.reservation[0], world.jobs[row]
    if job.vector:
        open_reservation(world, True)
        fits, _ = find_vector(world, job.shape, tier)
        close_reservation(world, True, row, False)
        return fits >= 0
    for device_type in device_types_of(world, job):
        reserved = reservation.device_type_mask >> device_type & 1 == 1
        accepts = accepts_device_type(job, device_type)
        if reserved and accepts and free_with_reserved(world, device_type, tier) >= job.gpus:
            return True
    return False


@kernel
def free_with_reserved(world: World, device_type: int, tier: int) -> int:
    """Free devices of a reserved type, reserved ones included, in that group of a tier around them with most."""
    reservation = world.reservation[0]
    reserved = world.groups[reservation.tier, reservation.group]
    best, last, free = 0, -1, 0
    for at in range(reserved.start, reserved.stop):
        host = world.hosts[at]
        if host.group[tier] != last:
            last = host.group[tier]
            free = world.groups[tier, last].free[device_type]
        if host.device_type == device_type:
            free += host.masked
        best = max(best, free)
    return best


@kernel
def most_free_for(world: World, row: int) -> int:
    """Free devices of the accepted type that has most, with reserved ones that this job may use."""
    job, opens = world.jobs[row], may_use_reserved(world, row)
    open_reservation(world, opens)
    free, most = world.groups[world.groups.shape[0] - 1, 0].free, 0
    for device_type in range(world.state[0].device_types):
        if accepts_device_type(job, device_type):
            most = max(most, free[device_type])
    close_reservation(world, opens, row, False)
    return most
