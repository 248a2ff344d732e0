"""Which shape, where and when, for a job with alternatives: one comparison over all of them.

A shape that fits now costs the seconds until the job would end in it, and for every second of that what its devices
cost the jobs that wait (scarcity.py). A shape that does not fit now costs its look-ahead wait beside. The job starts
if the cheapest of all fits now. Otherwise it waits, its record describes what it waits for, and the next pass
chooses again: nothing is fixed before it starts. What a job has waited in this way counts against waiting on, and it
never waits longer in all than it would have run: a better shape that others take again and again is given up.

A large job keeps to the types on which its work is cheap (scarcity.py), without a forecast: shorter jobs go before it,
and more of them arrive. Once it has waited `_LARGE_WAITS` times as long as it would run on others, it takes any; four
jobs of a pass at most do.
"""

from __future__ import annotations

import math
from typing import Any

from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.links import shape_may_send
from berth.schedule.placement import limited_links
from berth.schedule.progress import restore_cost_s
from berth.schedule.reasons import ReasonCode
from berth.schedule.records import MAX_DEVICE_TYPES, MAX_TIERS, EstimateKind, JobStatus, World
from berth.schedule.reservation import A_MOMENT_S, running_by_end, soonest_for_need
from berth.schedule.scarcity import (
    LARGE,
    preferred_shape,
    price_for,
    refuses,
    set_prices,
    size_of,
    update_prices,
)
from berth.schedule.shapes import find_shape, has_failed

_MAX_LOOKS = 4  # jobs of a pass for which the look-ahead wait is computed; those behind start where they fit
_LARGE_WAITS = 16.0
_SIZES = (1.0, 2.0 * LARGE)  # for which jobs that are not large, and large ones, compare what they wait for


@inlined
def begin_choices(world: World, now: float) -> None:
    """Prepares a pass, where jobs may have alternatives."""
    if len(world.shapes) > 0:
        begin_prices(world, now)


@deferred
def begin_prices(world: World, now: float) -> None:
    """The same: prices as of now, nothing promised yet."""
    state, choice = world.state[0], world.shape_choice[0]
    update_prices(world, now)
    if state.queue_start < state.queue_stop:
        set_prices(world, world.jobs[world.waiting[state.queue_start]].priority)
    choice.looked_ahead, choice.ends_s, choice.wake_s = 0, -math.inf, math.inf
    for device_type in range(MAX_DEVICE_TYPES):
        choice.promised[device_type] = 0


@deferred
def choose(world: World, row: int, open_: bool, now: float) -> tuple[int, int]:
    """(tier, group) in which a job should start now, its record then describing the shape; (-1, -1): it waits."""
    job, scarcity, choice = world.jobs[row], world.scarcity[0], world.shape_choice[0]
    if job.priority != scarcity.priced_for:
        set_prices(world, job.priority)
    size, refused_s = size_of(world, row), world.shapes[job.first_shape].refused_s
    if size > LARGE and (refused_s == math.inf or not within_quota(world, row, size)):
        size = LARGE  # it takes any type
    if job.other_shape >= 0 or size > LARGE:
        job.deferred_s += now - max(job.deferred_at_s, job.queued_since_s)
    job.deferred_at_s = now
    shape, tier, group, cost_s = best_now(world, row, open_, size, False)
    better, when, wait_s = -1, now, 0.0
    if shape < 0 and size > LARGE and choice.looked_ahead < _MAX_LOOKS:
        choice.looked_ahead += 1
        shape, tier, group, cost_s = best_now(world, row, open_, size, True)
        if shape >= 0:
            wait_s = _LARGE_WAITS * run_s(world, row, shape, tier) - job.deferred_s
            better, when = cheapest(world, row, size) if wait_s > 0.0 else -1, math.inf
    elif shape >= 0:
        wait_s = run_s(world, row, shape, tier) - job.deferred_s
        better, when = (
            best_later(world, row, size, cost_s - job.deferred_s, now) if wait_s > 0.0 else (-1, now)
        )
    if better >= 0:
        near = world.shapes[better].nearest_tier
        saves_s = 0.0
        if when < math.inf:
            saves_s = run_s(world, row, shape, tier) - run_s(world, row, better, near) - (when - now)
            wait_s = min(wait_s, cost_s - job.deferred_s - cost_of(world, row, better, near, size))
        choice.wake_s = min(choice.wake_s, now + max(A_MOMENT_S, wait_s))
        take_shape(world, row, better)
        promise(world, better)
        job.other_shape, job.reason, job.waits_for_tier = shape, ReasonCode.WAITS_FOR_SHAPE, job.nearest_tier
        job.until_s, job.saves_s, job.explained_s = when, saves_s, now
        return -1, -1
    job.other_shape = -1
    if shape >= 0:
        take_shape(world, row, shape)
    else:
        take_shape(world, row, cheapest(world, row, size))
        promise(world, job.shape)
    return tier, group


@kernel
def cheapest(world: World, row: int, size: float) -> int:
    """The shape with the lowest cost at its nearest placement, whenever that is free, and not on types it refuses."""
    job = world.jobs[row]
    if job.first_start_s < 0:  # of a job that has run the rest counts, and what restoring it costs
        first, large = world.shapes[job.first_shape], int(size > LARGE)
        if first.compared[large] != world.scarcity[0].price_version:
            first.compared[large] = world.scarcity[0].price_version
            first.cheapest[large] = preferred_shape(world, row, _SIZES[large])
        return first.cheapest[large]
    best, least_s = job.shape, math.inf
    for number in range(job.first_shape, job.first_shape + job.shape_count):
        if refuses(world.shapes[number], size):
            continue
        cost_s = cost_of(world, row, number, world.shapes[number].nearest_tier, size)
        if cost_s < least_s:
            best, least_s = number, cost_s
    return best


@kernel
def best_now(world: World, row: int, open_: bool, size: float, any_type: bool) -> tuple[int, int, int, float]:
    """(shape, tier, group, cost) of the cheapest start now, on `any_type` or those it keeps to; shape -1: none fits."""
    job = world.jobs[row]
    best, best_tier, best_group, least_s = -1, -1, -1, math.inf
    for number in range(job.first_shape, job.first_shape + job.shape_count):
        shape = world.shapes[number]
        if has_failed(world, shape, open_) or over_quota(world, row, number):
            continue
        if (not any_type and refuses(shape, size)) or cost_of(
            world, row, number, shape.nearest_tier, size
        ) >= least_s:
            continue
        tier, group = find_shape(world, number, widest_tier_of(job, shape), open_)
        if limited_links(world, tier) and not shape_may_send(world, number, tier, group):
            continue
        if tier >= 0:
            cost_s = cost_of(world, row, number, tier, size)
            if cost_s < least_s:
                best, best_tier, best_group, least_s = number, tier, group, cost_s
    return best, best_tier, best_group, least_s


@inlined
def widest_tier_of(job: Any, shape: Any) -> int:
    """Where a job may start; one that can't be moved, and of unknown duration, only where distance hardly slows it."""
    unknown = not job.movable and job.estimate_kind != EstimateKind.TRACKED
    slowed = shape.slowdown[shape.widest_tier] > 1.01 * shape.slowdown[shape.nearest_tier]
    return int(shape.nearest_tier if unknown and slowed else shape.widest_tier)


@kernel
def best_later(world: World, row: int, size: float, least_s: float, now: float) -> tuple[int, float]:
    """(shape, when) of the cheapest start at a near place later, if it is cheaper; shape -1: none is."""
    job, choice = world.jobs[row], world.shape_choice[0]
    best, best_when = -1, now
    if choice.looked_ahead >= _MAX_LOOKS:
        return best, best_when
    choice.looked_ahead += 1
    for number in range(job.first_shape, job.first_shape + job.shape_count):
        shape = world.shapes[number]
        cost_s = cost_of(world, row, number, shape.nearest_tier, size)
        if cost_s >= least_s or refuses(shape, size) or over_quota(world, row, number):
            continue
        if choice.ends_s != now:
            choice.ends, choice.ends_s = len(running_by_end(world, now)), now
        rows = world.ending[: choice.ends]
        if choice.ends == 0 or world.jobs[rows[0]].expected_end_s - now + cost_s >= least_s:
            continue  # no device comes free in time
        when, _ = soonest_for_need(world, row, number, shape.nearest_tier, len(rows), now)
        if when - now + cost_s < least_s:
            best, best_when, least_s = number, when, when - now + cost_s
    return best, best_when


@inlined
def cost_of(world: World, row: int, number: int, tier: int, size: float) -> float:
    """Seconds until a job would end in a shape at a tier, and what its devices cost until then: others, and dollars."""
    shape, waits = world.shapes[number], world.jobs[row].state == JobStatus.WAITING
    return run_s(world, row, number, tier) * (1.0 + price_for(world, shape, waits, size))


@inlined
def run_s(world: World, row: int, number: int, tier: int) -> float:
    """Seconds that a waiting job would run in a shape at a tier, with restoring."""
    job, shape = world.jobs[row], world.shapes[number]
    restore_s = restore_cost_s(world, shape.gpus) if job.first_start_s >= 0 else 0.0
    return restore_s + remaining_in(world, row, number) * shape.slowdown[tier]


@inlined
def remaining_in(world: World, row: int, number: int) -> float:
    """Seconds of work left in a shape at its nearest placement."""
    job = world.jobs[row]
    return job.estimated_remaining_s * (world.shapes[number].unit_s / world.shapes[job.shape].unit_s)


@inlined
def over_quota(world: World, row: int, number: int) -> bool:
    """Whether a shape exceeds what its virtual cluster may hold, or overtakes a job that blocks it."""
    job = world.jobs[row]
    if job.quota < 0:
        return False
    quota = world.quotas[job.quota]
    over = quota.used + world.shapes[number].gpus > quota.allowed
    return over or quota.closed == world.state[0].search_epoch


@inlined
def within_quota(world: World, row: int, size: float) -> bool:
    """Whether its virtual cluster may ever hold a shape that a job of this size does not refuse."""
    return (
        world.jobs[row].quota < 0
        or least_gpus(world, row, size) <= world.quotas[world.jobs[row].quota].allowed
    )


@kernel
def least_gpus(world: World, row: int, size: float) -> int:
    """What the smallest of these shapes is charged for."""
    job, least = world.jobs[row], 2**31 - 1
    for number in range(job.first_shape, job.first_shape + job.shape_count):
        if not refuses(world.shapes[number], size):
            least = min(least, world.shapes[number].gpus)
    return least


@inlined
def promise(world: World, number: int) -> None:
    """Counts the devices that a job waits for, so that those behind it do not count on them."""
    for device_type in range(MAX_DEVICE_TYPES):
        world.shape_choice[0].promised[device_type] += world.shapes[number].need[device_type]


@kernel
def take_shape(world: World, row: int, number: int) -> None:
    """Describes a job by another of its shapes; what is left to do is the same work, in that shape's seconds."""
    job, shape = world.jobs[row], world.shapes[number]
    if number == job.shape:
        return
    ratio = shape.unit_s / world.shapes[job.shape].unit_s
    job.answers = -1
    job.work_s *= ratio
    job.done_s *= ratio
    job.given_s *= ratio
    job.median_work_s *= ratio
    job.index_s *= ratio
    job.true_remaining_s *= ratio
    job.estimated_remaining_s *= ratio
    job.checkpointed_remaining_s *= ratio
    job.shape, job.gpus, job.vector = number, shape.gpus, shape.vector
    job.device_type, job.device_type_mask = shape.device_type, 0
    for device_type in range(MAX_DEVICE_TYPES):
        if shape.need[device_type] > 0:
            job.device_type_mask |= 1 << device_type
    job.nearest_tier, job.widest_tier = shape.nearest_tier, shape.widest_tier
    job.message_bytes = shape.message_bytes
    for tier in range(MAX_TIERS):
        job.slowdown[tier] = shape.slowdown[tier]
