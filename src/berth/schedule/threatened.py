"""Running jobs that a waiting job may displace, last in the order first.

While the order of running jobs only improves, a job that went before another at the last look still does, and an order
computed earlier is a bound on the order of now. So jobs are kept in a heap by the order they had. The job on top is
asked for its order of now, and is the last of all once it stays on top: most jobs are never asked about. A policy that
keeps state with jobs is asked about all of them, since its answers depend on when it was asked; then they are sorted.
"""

from __future__ import annotations

import math
from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.policy import Hooks
from berth.schedule.progress import advance_progress
from berth.schedule.queue import precedes, set_bound, set_order, sort_rows
from berth.schedule.records import Array, World


@kernel
def find_threatened(world: World, hooks: Hooks, now: float) -> tuple[int, float, bool]:
    """Finds the running jobs that the first waiting job may displace.

    Returns how many of them may be evicted now, when the next of the others may, and whether some are young: those
    that have not worked for `min_run_s` yet give way to higher priorities only. What this pass has just started stays.
    """
    state, search, jobs, bounded = world.state[0], world.victim_search[0], world.jobs, world.bound[0].valid
    top = jobs[world.waiting[state.queue_start]]
    count, total, last, wake, young = 0, 0, -1, math.inf, False
    for i in range(state.running):
        row = world.running[i]
        job = jobs[row]
        ahead = job.priority > top.priority
        if bounded and (ahead or (job.priority == top.priority and job.order_key < top.order_key)):
            if last < 0 or precedes(jobs[last], job):
                last = row
            continue
        until_s = evictable_from_s(world, job, now)
        if now < until_s < math.inf:
            wake = min(wake, until_s)
            young |= job.priority < top.priority
        one = world.threatened[count]
        one.row, one.running_index = row, i
        one.evictable = may_evict(job, until_s, top.priority, now)
        one.priority, one.order_key, one.asked = job.priority, job.order_key, 0
        count += 1
        total += one.evictable
    search.threatened = count
    search.all_asked = not bounded or world.rules[0].has_update or world.rules[0].has_tie_break
    if search.all_asked:
        ask_all(world, hooks, top.priority, now)
    else:
        for at in range(count // 2 - 1, -1, -1):
            sink(world, at)
    if count > 0:
        row = world.threatened[index_of_last(world, hooks, now)].row
        if last < 0 or precedes(jobs[last], jobs[row]):
            last = row
    set_bound(world, last)
    return total, wake, young


@inlined
def evictable_from_s(world: World, job: Any, now: float) -> float:
    """From when on a running job may be evicted; inf: not by this pass."""
    if not job.preemptible or job.started_s >= now:
        return math.inf
    min_run_s = world.rules[0].min_run_s
    return max(job.started_s, job.restored_at_s) + min_run_s if min_run_s > 0.0 else now


@inlined
def may_evict(job: Any, until_s: float, priority: int, now: float) -> bool:
    """Whether a running job, evictable from `until_s` on, may be evicted for a waiting one of a priority."""
    return until_s <= now or (until_s < math.inf and job.priority < priority)


@kernel
def pop_last(world: World, hooks: Hooks, now: float) -> int:
    """Takes away the job that goes last of those that may be evicted."""
    search = world.victim_search[0]
    while True:
        one = world.threatened[index_of_last(world, hooks, now)]
        row, evictable = one.row, one.evictable
        search.threatened -= 1
        if not search.all_asked:
            copy_threatened(world.threatened[search.threatened], one)
            sink(world, 0)
        if evictable:
            return int(row)


@kernel
def index_of_last(world: World, hooks: Hooks, now: float) -> int:
    """The index of the job that goes last: the policy is asked about the top of the heap until that stays there."""
    if world.victim_search[0].all_asked:
        return int(world.victim_search[0].threatened - 1)
    top = world.threatened[0]
    while not top.asked:
        job = world.jobs[top.row]
        advance_progress(job, now)
        set_order(world, hooks, top.row, now)
        top.order_key, top.asked = job.order_key, 1
        sink(world, 0)
    return 0


@kernel
def ask_all(world: World, hooks: Hooks, priority: int, now: float) -> None:
    """Asks the policy about every job, and puts them in order, here and among the running jobs."""
    count, jobs, heap = world.victim_search[0].threatened, world.jobs, world.threatened
    rows = world.victims[:count]
    for at in range(count):
        rows[at] = heap[at].row
        advance_progress(jobs[rows[at]], now)
        set_order(world, hooks, rows[at], now)
    sort_rows(jobs, rows)
    for at in range(count):  # nearly in order for the next time
        one, job = heap[at], jobs[rows[at]]
        world.running[one.running_index] = one.row = rows[at]
        job.running_index = one.running_index
        one.evictable = may_evict(job, evictable_from_s(world, job, now), priority, now)


@kernel
def sink(world: World, at: int) -> None:
    """Moves an entry of the heap down to its place: what goes later is above."""
    count, heap = world.victim_search[0].threatened, world.threatened
    while True:
        below = 2 * at + 1
        if below >= count:
            return
        if below + 1 < count and goes_later(world, heap[below + 1], heap[below]):
            below += 1
        if not goes_later(world, heap[below], heap[at]):
            return
        swap(heap, at, below)
        at = below


@inlined
def goes_later(world: World, first: Any, second: Any) -> bool:
    """Whether an entry may go after another; of equal ones, one that was not asked about yet."""
    if first.priority != second.priority:
        return first.priority < second.priority
    if first.order_key != second.order_key:
        return first.order_key > second.order_key
    if not first.asked or not second.asked:
        return first.asked < second.asked
    return precedes(world.jobs[second.row], world.jobs[first.row])


@inlined
def swap(heap: Array, first: int, second: int) -> None:
    """Exchanges two entries; the last one of the array is spare."""
    copy_threatened(heap[first], heap[-1])
    copy_threatened(heap[second], heap[first])
    copy_threatened(heap[-1], heap[second])


@inlined
def copy_threatened(source: Any, target: Any) -> None:
    """Copies an entry of the heap."""
    target.order_key, target.row, target.priority = source.order_key, source.row, source.priority
    target.running_index, target.evictable, target.asked = (
        source.running_index,
        source.evictable,
        source.asked,
    )
