"""The order of jobs: the waiting queue, sorted; the running jobs; and the running job that goes last."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from berth.native.arrays import move
from berth.native.deferred import deferred
from berth.native.kernels import inlined, kernel
from berth.schedule.estimates import learn_duration
from berth.schedule.policy import Hooks
from berth.schedule.progress import restore_cost_s
from berth.schedule.records import Array, EstimateKind, JobStatus, World
from berth.schedule.scarcity import count_demand
from berth.schedule.segments import join_segment, leave_segment
from berth.schedule.totals import update_totals

_ABOVE_ANY = 2**31 - 1  # priority of the bound while nothing runs
# A job with alternatives counts as this many times the GPU-seconds of its most efficient shape. It can take devices
# that others leave, and a gang can't: without it gangs wait longer than beside jobs of fixed shapes. While it runs it
# counts half, so that it is restored less often.
_WAITING_WEIGHT, _RUNNING_WEIGHT = 7.0, 3.5
_SHIFTS_PER_ROW = 8  # insertion sort gives up beyond this average


@inlined
def precedes(first: Any, second: Any) -> bool:
    """Whether one record goes before another: by priority, order, tie break, arrival, row."""
    if first.priority != second.priority:
        return first.priority > second.priority
    if first.order_key != second.order_key:
        return first.order_key < second.order_key
    if first.tie_break != second.tie_break:
        return first.tie_break < second.tie_break
    if first.arrival_s != second.arrival_s:
        return first.arrival_s < second.arrival_s
    return first.id < second.id


@inlined
def set_order(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Sets a job's place in the order from the policy."""
    job, cluster, params = world.jobs[row], world.cluster[0], world.params[0]
    job.order_key = order_of(world, hooks, row, now)
    if world.rules[0].has_tie_break:
        job.tie_break = hooks.tie_break(job, now, cluster, params)


@inlined
def order_of(world: World, hooks: Hooks, row: int, now: float) -> float:
    """The policy's order of a job, whose state of the policy is updated first."""
    job, cluster, params = world.jobs[row], world.cluster[0], world.params[0]
    update_totals(world, job, now)
    job.restore_s = restore_cost_s(world, job.gpus)
    if job.estimate_kind == EstimateKind.TRACKED:
        job.index_s = job.estimated_remaining_s
        if job.shape_count > 1 and not world.shapes[job.shape].gang:
            weight = _RUNNING_WEIGHT if job.tier >= 0 else _WAITING_WEIGHT
            job.index_s *= weight * world.shapes[job.shape].least_share
    elif job.tier < 0:
        learn_duration(world, row, now)
    update_policy_state(world, hooks, row, now)
    return hooks.order(job, now, cluster, params)


@inlined
def update_policy_state(world: World, hooks: Hooks, row: int, now: float) -> None:
    """Lets the policy update what it remembers of a job."""
    if world.rules[0].has_update:
        hooks.update(world.jobs[row], now, world.cluster[0], world.params[0])


@kernel
def enqueue(world: World, row: int) -> None:
    """Inserts a job into the queue by its order; the shorter side of the queue moves."""
    waiting, state, walk = world.waiting, world.state[0], world.walk[0]
    if state.queue_stop == len(waiting):
        compact(world)
    first, last = state.queue_start, state.queue_stop
    low = index_for(world, row, last)
    if first > 0 and low - first < last - low:
        move(waiting, first, first - 1, low - first)
        low -= 1
        state.queue_start = first - 1
    else:
        move(waiting, low, low + 1, last - low)
        state.queue_stop = last + 1
    enter_at(world, low, row, walk.first_segment, state.queue_start)


@kernel
def enqueue_all(world: World, rows: Array) -> None:
    """Inserts several jobs; those that wait already move once."""
    waiting, state, walk, count = world.waiting, world.state[0], world.walk[0], len(rows)
    if state.queue_stop + count > len(waiting):
        compact(world)
    sort_rows(world.jobs, rows)
    indices, stop = np.empty(count, np.int64), state.queue_stop
    for k in range(count - 1, -1, -1):
        indices[k] = index_for(world, rows[k], stop)
        move(waiting, indices[k], indices[k] + k + 1, stop - indices[k])
        stop = indices[k]
    segment, start = walk.first_segment, state.queue_start
    for k in range(count):
        segment, start = enter_at(world, indices[k] + k, rows[k], segment, start)
    state.queue_stop += count


@kernel
def index_for(world: World, row: int, stop: int) -> int:
    """Where a job belongs in the queue, of which the part before an index is looked at."""
    jobs, waiting = world.jobs, world.waiting
    low, high = world.state[0].queue_start, stop
    if high > low and precedes(jobs[waiting[high - 1]], jobs[row]):
        low = high
    while low < high:
        middle = (low + high) // 2
        if precedes(jobs[row], jobs[waiting[middle]]):
            high = middle
        else:
            low = middle + 1
    return low


@inlined
def enter_at(world: World, at: int, row: int, segment: int, start: int) -> tuple[int, int]:
    """Puts a job at an index of the queue at which there is room for it; returns its segment: see join_segment."""
    world.waiting[at] = row
    world.jobs[row].state, world.jobs[row].answers = JobStatus.WAITING, -1
    if world.walk[0].segmented:
        segment, start = join_segment(world, at, row, segment, start)
    count_waiting(world, row, 1)
    return segment, start


@inlined
def count_waiting(world: World, row: int, more: int) -> None:
    """Counts a job that joins the queue (1) or leaves it (-1)."""
    world.demands[world.jobs[row].demand].waiting += more
    count_demand(world, row, more)


@kernel
def compact(world: World) -> None:
    """Moves the queue to the front of its array."""
    state = world.state[0]
    move(world.waiting, state.queue_start, 0, state.queue_stop - state.queue_start)
    state.queue_stop -= state.queue_start
    state.queue_start = 0


@deferred
def dequeue_at(world: World, at: int) -> None:
    """Removes the job at one index of the queue; those before it move up by one."""
    state, walk = world.state[0], world.walk[0]
    if walk.segmented:
        leave_segment(world, at, world.waiting[at])
    move(world.waiting, state.queue_start, state.queue_start + 1, at - state.queue_start)
    state.queue_start += 1


@kernel
def gangs_wait(world: World) -> bool:
    """Whether a job with one shape waits; the place of others is chosen with their shape."""
    for i in range(world.state[0].queue_start, world.state[0].queue_stop):
        if world.jobs[world.waiting[i]].shape_count <= 1:
            return True
    return False


@inlined
def smallest_demand(world: World) -> int:
    """GPUs of the smallest waiting job."""
    for i in range(len(world.demands)):
        if world.demands[i].waiting > 0:
            return world.demands[i].gpus
    return 1 << 30


@kernel
def sort_rows(jobs: Array, rows: Array) -> None:
    """Sorts rows by insertion, since they are nearly in order; rows that are not are merged.

    Keys are copied side by side first: records lie far apart, and most comparisons end with the key.
    """
    keys, priorities = np.empty(len(rows)), np.empty(len(rows), np.int32)
    for i in range(len(rows)):
        keys[i], priorities[i] = jobs[rows[i]].order_key, jobs[rows[i]].priority
    shifts_left = _SHIFTS_PER_ROW * len(rows)
    for i in range(1, len(rows)):
        row, key, priority = rows[i], keys[i], priorities[i]
        k = i - 1
        while k >= 0 and priority >= priorities[k]:
            behind = key > keys[k] or (key == keys[k] and not precedes(jobs[row], jobs[rows[k]]))
            if priority == priorities[k] and behind:
                break
            rows[k + 1], keys[k + 1], priorities[k + 1] = rows[k], keys[k], priorities[k]
            k -= 1
        rows[k + 1], keys[k + 1], priorities[k + 1] = row, key, priority
        shifts_left -= i - 1 - k
        if shifts_left < 0:
            merge_rows(jobs, rows)
            return


@kernel
def merge_rows(jobs: Array, rows: Array) -> None:
    """Merge sort, for rows whose order has changed a lot."""
    source, target, width = rows.copy(), np.empty_like(rows), 1
    while width < len(rows):
        for start in range(0, len(rows), 2 * width):
            middle, stop = min(start + width, len(rows)), min(start + 2 * width, len(rows))
            left, right = start, middle
            for at in range(start, stop):
                if right == stop or (left < middle and precedes(jobs[source[left]], jobs[source[right]])):
                    target[at] = source[left]
                    left += 1
                else:
                    target[at] = source[right]
                    right += 1
        source, target, width = target, source, 2 * width
    for i in range(len(rows)):  # numba takes two seconds to compile `rows[:] = source`
        rows[i] = source[i]


@inlined
def add_running(world: World, row: int) -> None:
    """Appends a job to the running ones; it may be the one that goes last."""
    state, bound, job = world.state[0], world.bound[0], world.jobs[row]
    at = state.running
    world.running[at] = row
    job.running_index = at
    state.running = at + 1
    state.preemptible += job.preemptible
    if bound.valid and precedes(bound, job):
        copy_order(bound, job)


@inlined
def remove_running(world: World, row: int) -> None:
    """Removes a job from the running ones; the last of them takes its index."""
    state = world.state[0]
    state.preemptible -= world.jobs[row].preemptible
    at = world.jobs[row].running_index
    last = world.running[state.running - 1]
    world.running[at] = last
    world.jobs[last].running_index = at
    world.jobs[row].running_index = -1
    state.running -= 1


@inlined
def set_bound(world: World, last: int) -> None:
    """Records which running job goes last (-1: nothing runs), for as long as their order only improves."""
    bound = world.bound[0]
    bound.valid = world.rules[0].monotone_order
    if last >= 0:
        copy_order(bound, world.jobs[last])
    else:
        bound.priority, bound.id = _ABOVE_ANY, -1
        bound.order_key = bound.tie_break = bound.arrival_s = -math.inf


@inlined
def copy_order(bound: Any, job: Any) -> None:
    """Copies what decides a job's place in the order."""
    bound.priority, bound.order_key, bound.tie_break = job.priority, job.order_key, job.tie_break
    bound.arrival_s, bound.id = job.arrival_s, job.id


@inlined
def may_displace(world: World, row: int) -> bool:
    """Whether a waiting job may take the place of some running job."""
    if world.state[0].preemptible == 0:
        return False
    return not world.bound[0].valid or precedes(world.jobs[row], world.bound[0])
