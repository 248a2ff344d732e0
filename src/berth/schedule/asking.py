"""What the policy answers about waiting jobs, and which of them a pass can skip.

The widest tier that a job accepts and when that could change (`allowed_tier`, `wake`) are kept with the job: until
that moment the answers hold, unless delay timers change, which is noted (`Demand.answers`). Where no program reads
reasons (`State.explained`), a walk through the queue passes over whole segments (segments.py) in which every job
accepts tiers that have no group with enough free devices: each of them would be tried without success. What is left of
such a try is the moment to ask the policy again, which the segment knows too. So a walk with segments and one without
decide the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.policy import Hooks
from berth.schedule.progress import restore_cost_s
from berth.schedule.queue import precedes
from berth.schedule.records import World
from berth.schedule.reservation import A_MOMENT_S
from berth.schedule.rules import Preempt
from berth.schedule.segments import add_needs, clear_needs, enter_segment, find_segment, runs_s
from berth.schedule.totals import update_totals


@kernel
def allowed_tier_of(world: World, hooks: Hooks, row: int, now: float) -> int:
    """The widest tier that the policy accepts for a job now, within what its user allows."""
    job = world.jobs[row]
    if world.rules[0].learn_timers:
        for tier in range(world.groups.shape[0]):
            job.delay_timer_s[tier] = world.wait_stats[job.demand, tier].timer_s
    update_totals(world, job, now)
    wanted = hooks.allowed_tier(job, now, world.cluster[0], world.params[0])
    return max(job.nearest_tier, min(wanted, job.widest_tier))


@inlined
def wake_time_of(world: World, hooks: Hooks, row: int, now: float) -> float:
    """When the policy wants to be asked again about a job; a time in the past means never."""
    update_totals(world, world.jobs[row], now)
    wake = hooks.wake(world.jobs[row], now, world.cluster[0], world.params[0])
    if wake == now:  # a timer that expires now but for rounding
        return max(now + A_MOMENT_S, np.nextafter(now, math.inf))
    return wake if wake > now else math.inf


@kernel
def ask(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Asks the policy about a waiting job, unless what it said before still holds."""
    job = world.jobs[row]
    known = job.answers == world.demands[job.demand].answers and now < job.asked_until_s
    if known and world.walk[0].keeps_answers:
        return
    job.answers = world.demands[job.demand].answers
    job.asked_tier = allowed_tier_of(world, hooks, row, now)
    job.asked_until_s = wake_time_of(world, hooks, row, now)


@inlined
def next_to_consider(
    world: World, hooks: Hooks, at: int, every: bool, priority: int, ahead_of: int, due: bool, now: float
) -> tuple[int, float]:
    """(index, wake): of the next job from an index of the queue on to be considered, which is asked.

    Jobs that can't start are passed over, except where `every` job counts: up to the first of a lower priority, and the
    first that does not go ahead of the job in a row, if that is not -1. Where a reservation is `due`, one that can't be
    preempted is considered too: it is what the reservation is made for. The policy is to be asked about the others
    again at `wake`.
    """
    if not world.walk[0].segmented or every:
        ask(world, hooks, world.waiting[at], now)
        return at, math.inf
    return next_by_segments(world, hooks, at, priority, ahead_of, due, now)


@deferred
def next_by_segments(
    world: World, hooks: Hooks, at: int, priority: int, ahead_of: int, due: bool, now: float
) -> tuple[int, float]:
    """The same where the queue has segments and not every job counts."""
    state, walk, wake = world.state[0], world.walk[0], math.inf
    if at > walk.segment_stop:
        find_segment(world, at)
    limit_needs(world)
    while at < state.queue_stop:
        if at == walk.segment_stop:
            segment = world.segments[walk.next_segment]
            ask_segment(world, hooks, segment, at, now)
            enter_segment(world, at)
            apart = state.masked > 0 and is_kept_apart(world, segment, at, now)
            ahead = goes_ahead(world, world.waiting[walk.segment_stop - 1], ahead_of)
            counts = due and segment.fixed
            if (
                ahead
                and segment.priority >= priority
                and not (counts or may_hold(world, segment.need, apart))
            ):
                at, wake = walk.segment_stop, min(wake, segment.until_s)
                continue
        ask(world, hooks, world.waiting[at], now)
        job = world.jobs[world.waiting[at]]
        apart = keeps_devices_from(world, job.priority) and not may_backfill(
            world, runs_s(job), job.gpus, now
        )
        if job.priority < priority or job.gpus <= most_free_at(world, job.asked_tier, apart):
            break
        if (due and not job.preemptible) or not goes_ahead(world, world.waiting[at], ahead_of):
            break
        at, wake = at + 1, min(wake, job.asked_until_s)
    return at, wake


@kernel
def is_kept_apart(world: World, segment: Any, at: int, now: float) -> bool:
    """Whether no job of a segment, which begins at an index of the queue, may use reserved devices."""
    if segment.priority != world.jobs[world.waiting[at]].priority:
        return False
    if not keeps_devices_from(world, segment.priority):
        return False
    if segment.shortest_s < 0.0:
        segment.shortest_s = math.inf
        for i in range(at, at + segment.count):
            segment.shortest_s = min(segment.shortest_s, runs_s(world.jobs[world.waiting[i]]))
    return not may_backfill(world, segment.shortest_s, min_of(segment.need), now)


@kernel
def goes_ahead(world: World, row: int, of: int) -> bool:
    """Whether a job goes before another; -1: before none in particular."""
    return of < 0 or precedes(world.jobs[row], world.jobs[of])


@kernel
def next_to_spread(world: World, at: int, scattered: bool) -> int:
    """The same for jobs that may start at the widest tier that their users allow: the index of the next.

    `scattered`: it is enough that as many devices are free, wherever they are.
    """
    state, walk = world.state[0], world.walk[0]
    if not walk.segmented:
        return at
    if at > walk.segment_stop:
        find_segment(world, at)
    limit_needs(world)
    while at < state.queue_stop:
        if at == walk.segment_stop:
            segment = world.segments[walk.next_segment]
            enter_segment(world, at)
            uniform = segment.priority == world.jobs[world.waiting[at]].priority
            apart = uniform and keeps_devices_from(world, segment.priority)
            too_few = not may_hold(world, segment.need_spread, apart)
            if scattered:
                too_few = min_of(segment.need_spread) > all_free(world, apart)
            if segment.answers == walk.answers and too_few:
                at = walk.segment_stop
                continue
        job = world.jobs[world.waiting[at]]
        apart = keeps_devices_from(world, job.priority)
        if job.gpus <= (all_free(world, apart) if scattered else most_free_at(world, job.widest_tier, apart)):
            break
        at += 1
    return at


@kernel
def min_of(needs: Any) -> int:
    """The smallest of the needs by tier."""
    smallest = needs[0]
    for need in needs:
        smallest = min(smallest, need)
    return smallest


@kernel
def limit_needs(world: World) -> None:
    """Notes the most free devices by tier, for `may_hold`: a walk compares them with many segments."""
    limits = world.walk[0].need_limits
    for tier in range(world.groups.shape[0]):
        limits[0, tier] = most_free_at(world, tier, False)
        limits[1, tier] = most_free_at(world, tier, True)


@inlined
def may_hold(world: World, need: Any, unreserved: bool) -> bool:
    """Whether a group of some tier may have as many free devices as are needed there: see `limit_needs`."""
    found, limits = False, world.walk[0].need_limits[1 if unreserved else 0]
    for tier in range(world.groups.shape[0]):
        found |= need[tier] <= limits[tier]
    return found


@kernel
def most_free_at(world: World, tier: int, unreserved: bool) -> int:
    """No group of a tier has more free devices of one type; `unreserved`: reserved ones do not count."""
    state, most = world.state[0], 0
    for device_type in range(state.device_types):
        most = max(most, state.most_free[1 if unreserved else 0, device_type, tier])
    return min(most, all_free(world, unreserved))


@inlined
def all_free(world: World, unreserved: bool) -> int:
    """Free devices of all types; `unreserved`: reserved ones do not count."""
    return world.state[0].free + (0 if unreserved else world.state[0].masked)


@kernel
def keeps_devices_from(world: World, priority: int) -> bool:
    """Whether devices are reserved from jobs of a priority, for a job of the same that can't start now."""
    state, reservation = world.state[0], world.reservation[0]
    if state.masked == 0 or priority >= reservation.below_priority:
        return False
    holder = world.jobs[reservation.holder]
    return holder.priority == priority and holder.gpus > most_free_at(world, holder.widest_tier, False)


@kernel
def may_backfill(world: World, seconds: float, need: int, now: float) -> bool:
    """Whether `start_waiting.backfill` may start a job of this size and time, if it need not restore."""
    reservation = world.reservation[0]
    return now + seconds <= reservation.until_s + A_MOMENT_S or need <= reservation.spare


@kernel
def ask_segment(world: World, hooks: Hooks, segment: Any, at: int, now: float) -> None:
    """Asks the policy about the jobs of a segment, which begins at an index of the queue, where that is due."""
    if segment.answers == world.walk[0].answers and now < segment.until_s:
        return
    clear_needs(segment)
    rules = world.rules[0]
    for i in range(at, at + segment.count):
        row = world.waiting[i]
        ask(world, hooks, row, now)
        add_needs(segment, world.jobs[row])
        if rules.preempt == Preempt.BY_GAIN and not segment.gains:
            gain_s = nearest_gain_s(world, hooks, row, now)
            segment.gains = not rules.static_gain or gain_s > least_gain_s(world, row)
    segment.answers = world.walk[0].answers


@kernel
def nearest_gain_s(world: World, hooks: Hooks, row: int, now: float) -> float:
    """Seconds that a waiting job gains by its nearest tier over the next."""
    job = world.jobs[row]
    here = job.slowdown[min(job.widest_tier, job.nearest_tier + 1)]
    return hooks.gain(job, here, job.slowdown[job.nearest_tier], now, world.params[0])


@inlined
def least_gain_s(world: World, row: int) -> float:
    """What a job must gain at least for others to be evicted: a multiple of one restore."""
    return world.rules[0].gain_margin * restore_cost_s(world, world.jobs[row].gpus)


@kernel
def next_to_gain(world: World, hooks: Hooks, at: int, now: float) -> int:
    """The index of the next job, from an index of the queue on, for which others may be evicted."""
    state, walk = world.state[0], world.walk[0]
    if not walk.segmented:
        return at
    if at > walk.segment_stop:
        find_segment(world, at)
    while at == walk.segment_stop and at < state.queue_stop:
        segment = world.segments[walk.next_segment]
        ask_segment(world, hooks, segment, at, now)
        enter_segment(world, at)
        if not segment.gains:
            at = walk.segment_stop
    return at
