"""The queue: waiting jobs kept in order, running jobs kept at hand."""

from __future__ import annotations

import numpy as np

from berth.compile import inlined, kernel
from berth.schedule.view import WAITING, Array, World


@inlined
def before(jobs: Array, a: int, b: int) -> bool:
    """Whether job row `a` goes before `b`: by priority, key, the second key, arrival, row."""
    first, second = jobs[a], jobs[b]
    if first.priority != second.priority:
        return first.priority > second.priority
    if first.key != second.key:
        return first.key < second.key
    if first.then != second.then:
        return first.then < second.then
    if first.arrival != second.arrival:
        return first.arrival < second.arrival
    return a < b


@kernel
def enqueue(world: World, row: int) -> None:
    """Puts a job among the waiting where its keys belong; the shorter side of the queue makes room."""
    jobs, waiting, state = world.jobs, world.waiting, world.state[0]
    if state.last == len(waiting):
        to_the_front(world)
    first, last = state.first, state.last
    low, high = first, last
    if high > low and before(jobs, waiting[high - 1], row):
        low = high
    while low < high:
        middle = (low + high) // 2
        if before(jobs, row, waiting[middle]):
            high = middle
        else:
            low = middle + 1
    if first > 0 and low - first < last - low:
        for i in range(first, low):
            waiting[i - 1] = waiting[i]
        low -= 1
        state.first = first - 1
    else:
        for i in range(last, low, -1):
            waiting[i] = waiting[i - 1]
        state.last = last + 1
    waiting[low] = row
    jobs[row].state = WAITING
    world.demands[jobs[row].demand].waiting += 1


@kernel
def to_the_front(world: World) -> None:
    """Moves the queue to the front of its array."""
    state = world.state[0]
    for i in range(state.first, state.last):
        world.waiting[i - state.first] = world.waiting[i]
    state.last -= state.first
    state.first = 0


@kernel
def close_gap(world: World, kept: int, walked: int) -> None:
    """Of waiting[first:walked] only [first:kept] still wait: they move up to those behind them."""
    if kept == walked:
        return
    first = world.state[0].first
    for i in range(kept - 1, first - 1, -1):
        walked -= 1
        world.waiting[walked] = world.waiting[i]
    world.state[0].first = walked


@kernel
def step_out(world: World, at: int) -> None:
    """Takes one job out of the queue."""
    state = world.state[0]
    for k in range(at, state.first, -1):
        world.waiting[k] = world.waiting[k - 1]
    state.first += 1


@kernel
def sort_rows(jobs: Array, rows: Array) -> None:
    """Insertion sort: the rows were in order a moment ago, and nearly are still.

    Keys are laid side by side first: records lie far apart, and most comparisons end with the key.
    """
    keys, priorities = np.empty(len(rows)), np.empty(len(rows), np.int32)
    for i in range(len(rows)):
        keys[i], priorities[i] = jobs[rows[i]].key, jobs[rows[i]].priority
    for i in range(1, len(rows)):
        row, key, priority = rows[i], keys[i], priorities[i]
        k = i - 1
        while k >= 0 and priority >= priorities[k]:
            behind = key > keys[k] or (key == keys[k] and not before(jobs, row, rows[k]))
            if priority == priorities[k] and behind:
                break
            rows[k + 1], keys[k + 1], priorities[k + 1] = rows[k], keys[k], priorities[k]
            k -= 1
        rows[k + 1], keys[k + 1], priorities[k + 1] = row, key, priority


@inlined
def add_running(world: World, row: int) -> None:
    """Appends a job to the running ones."""
    state = world.state[0]
    at = state.running
    world.running[at] = row
    world.jobs[row].run_at = at
    state.running = at + 1


@inlined
def drop_running(world: World, row: int) -> None:
    """Takes a job out of the running ones; the last of them fills its seat."""
    state = world.state[0]
    at = world.jobs[row].run_at
    last = world.running[state.running - 1]
    world.running[at] = last
    world.jobs[last].run_at = at
    world.jobs[row].run_at = -1
    state.running -= 1
