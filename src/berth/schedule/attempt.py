"""The life of one attempt in the books: a gang takes its place, time passes, it leaves."""

from __future__ import annotations

import math
from typing import Any

from berth import reproducible
from berth.compile import inlined, kernel
from berth.schedule.links import may_send
from berth.schedule.place import fill, find, forget, offer_back
from berth.schedule.policy import Hooks
from berth.schedule.queue import add_running, drop_running, enqueue
from berth.schedule.shape import minds_shape
from berth.schedule.view import RUNNING, SMALL_GANG, START, World

_USUAL = 200  # starts that make up what is usual
ANY_KIND = -1  # every bit of `kinds`

_log, _exp = kernel(reproducible.log), kernel(reproducible.exp)


@inlined
def note(world: World, what: int, row: int, reason: int) -> None:
    """Appends one decision."""
    state = world.state[0]
    world.decisions[state.decisions, 0] = what
    world.decisions[state.decisions, 1] = row
    world.decisions[state.decisions, 2] = reason
    state.decisions += 1


@inlined
def takes(job: Any, kind: int) -> bool:
    """Whether a job can run on devices of a type."""
    return job.kind == kind or (job.kind < 0 and (job.kinds >> kind) & 1 == 1)


@kernel
def find_for(world: World, row: int, reach: int, open_: bool) -> tuple[int, int, int]:
    """(kind, tier, group) of the nearest place for a job within reach, or kind -1.

    Within a pass free devices only become fewer, so a demand that failed once fails again: that is
    remembered, apart for when held devices are in sight (`open_`) and when they are not.
    """
    job, state = world.jobs[row], world.state[0]
    failed = world.demands[job.demand].failed_open if open_ else world.demands[job.demand].failed
    number = state.passes
    if failed[job.kind + 1, reach] == number or job.gpus > state.free or over_quota(world, row):
        return -1, -1, -1
    kind, tier, group = nearest_place(world, row, reach)
    if kind < 0:
        if job.kind >= 0 or job.kinds == ANY_KIND:  # what fits on none of some types may fit on another
            for narrower in range(reach + 1):
                failed[job.kind + 1, narrower] = number
    elif tier > 0 and state.link_ratio < math.inf and not may_send(world, row, kind, tier, group):
        return -1, -1, -1
    return kind, tier, group


@inlined
def nearest_place(world: World, row: int, reach: int) -> tuple[int, int, int]:
    """The same for a job of which nothing is remembered, whoever sends on the links."""
    job = world.jobs[row]
    even = minds_shape(job, world.state[0].shape)
    best_kind, best_tier, best_group = -1, reach + 1, -1
    first, last = job.kind, job.kind + 1
    if job.kind < 0:
        first, last = 0, world.state[0].kinds
    for kind in range(first, last):
        if not takes(job, kind):
            continue
        tier, group = find(world, kind, job.gpus, job.floor, best_tier - 1, even)
        if tier >= 0:
            best_kind, best_tier, best_group = kind, tier, group
    return best_kind, best_tier, best_group


@inlined
def over_quota(world: World, row: int) -> bool:
    """Whether the job would exceed what its virtual cluster may use, or pass one of it that nobody may pass."""
    job = world.jobs[row]
    if job.quota < 0:
        return False
    quota = world.quotas[job.quota]
    return quota.used + job.gpus > quota.allowed or quota.closed == world.state[0].passes


@inlined
def charge(world: World, row: int, gpus: int) -> None:
    """Books devices on a job's virtual cluster, if it has a quota."""
    quota = world.jobs[row].quota
    if quota >= 0:
        world.quotas[quota].used += gpus


@kernel
def begin(world: World, row: int, kind: int, tier: int, group: int, now: float, reason: int) -> None:
    """A waiting gang takes its place."""
    job = world.jobs[row]
    job.waited += now - job.since
    seat(world, row, kind, tier, group, now, reason)
    world.demands[job.demand].waiting -= 1
    charge(world, row, job.gpus)
    add_running(world, row)
    widen_bound(world, row)
    if job.first_start < 0:
        count_service(world, row)
    note(world, START, row, reason)


@inlined
def count_service(world: World, row: int) -> None:
    """Keeps the usual size of jobs, in device-seconds: a geometric mean, as a few are very long."""
    job, state = world.jobs[row], world.state[0]
    state.starts += 1
    if state.look_ahead or state.defragment > 0:
        weight = 1.0 / min(state.starts, _USUAL)
        state.usual += weight * (_log(max(1.0, job.remaining * job.gpus)) - state.usual)


@inlined
def tell_usual(world: World, row: int) -> None:
    """Tells a job's record what other jobs ask for, for a policy to weigh its start against."""
    job, state = world.jobs[row], world.state[0]
    job.usual = _exp(state.usual)


@inlined
def widen_bound(world: World, row: int) -> None:
    """A job that starts may be the least deserving of those that run."""
    job, state = world.jobs[row], world.state[0]
    if not state.bounded:
        return
    if job.priority != state.worst_priority:
        worse = job.priority < state.worst_priority
    elif job.key != state.worst_key:
        worse = job.key > state.worst_key
    elif job.then != state.worst_then:
        worse = job.then > state.worst_then
    elif job.arrival != state.worst_arrival:
        worse = job.arrival > state.worst_arrival
    else:
        worse = row > state.worst_row
    if worse:
        state.worst_priority, state.worst_key, state.worst_then = job.priority, job.key, job.then
        state.worst_arrival, state.worst_row = job.arrival, row


@kernel
def seat(world: World, row: int, kind: int, tier: int, group: int, now: float, reason: int) -> None:
    """Takes the places and says why."""
    even = minds_shape(world.jobs[row], world.state[0].shape)
    head = fill(world, kind, tier, group, world.jobs[row].gpus, even)
    seat_at(world, row, head, tier, now, reason)


@kernel
def seat_at(world: World, row: int, head: int, tier: int, now: float, reason: int) -> None:
    """The same with places that are taken already."""
    job = world.jobs[row]
    job.booked = job.left
    job.head = head
    job.tier = tier
    job.state = RUNNING
    job.started = job.touched = now
    if not job.listed:
        job.listed = 1
        world.ending[world.state[0].ending] = row
        world.state[0].ending += 1
    job.reason, job.holds_out, job.until, job.saves = reason, tier, now, 0.0


@kernel
def end(world: World, row: int) -> None:
    """The gang leaves its places: finished, evicted or lost."""
    offer_back(world, world.jobs[row].head)
    leave(world, row)


@inlined
def leave(world: World, row: int) -> None:
    """The same for a gang whose devices are given back already."""
    job = world.jobs[row]
    book(job)
    job.at_tier[job.tier] += (world.state[0].now - job.started) * job.gpus
    forget(world, job.head)
    job.head = -1
    job.tier = -1
    charge(world, row, -job.gpus)
    drop_running(world, row)


@kernel
def requeue(world: World, hooks: Hooks, row: int, now: float, reason: int) -> None:
    """A job that lost its place waits again, from now."""
    job = world.jobs[row]
    job.since = job.evicted = now
    job.evictions += 1
    job.reason, job.holds_out, job.until, job.saves, job.noted = reason, job.floor, now, 0.0, now
    set_keys(world, hooks, row, now)
    enqueue(world, row)


@inlined
def set_keys(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Asks the policy for a job's place in the order; a higher priority goes before all of it."""
    job, my, state = world.jobs[row], world.my[0], world.state[0]
    job.key = hooks.order(job, now, my)
    if state.second_key:
        job.then = hooks.then(job, now, my)


@inlined
def touch(job: Any, now: float) -> None:
    """Advances a running job's progress to `now`; its speed has not changed since it was last advanced."""
    span = now - job.touched
    if span <= 0:
        return
    if now >= job.next_checkpoint:
        checkpoint(job, now)
    worked = max(0.0, now - max(job.touched, job.stall)) * job.speed
    job.left = max(0.0, job.left - worked)
    job.remaining = job.left * job.doubt
    job.ran += span
    job.attained += span * job.gpus
    job.touched = now


@kernel
def checkpoint(job: Any, now: float) -> None:
    """Records the work that was left at the last checkpoint by `now`; `left` is as of `touched`."""
    passed = math.floor((now - job.next_checkpoint) / job.checkpoint_s)
    at = job.next_checkpoint + passed * job.checkpoint_s
    job.saved = max(0.0, job.left - (at - max(job.touched, job.stall)) * job.speed)
    job.next_checkpoint = at + job.checkpoint_s


@inlined
def book(job: Any) -> None:
    """Reckons what the network cost since this was last done; the speed must not have changed meanwhile."""
    worked = job.booked - job.left
    job.exposed += worked * (1.0 / job.speed - job.compute) * job.gpus
    job.booked = job.left


@inlined
def restore_s(world: World, gpus: int) -> float:
    """What it costs a gang to be stopped and to restore its state elsewhere."""
    state = world.state[0]
    return state.eviction_s if gpus <= SMALL_GANG else state.eviction_large_s
