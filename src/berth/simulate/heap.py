"""The running jobs by the time they finish: a binary heap that knows where each job stands."""

from __future__ import annotations

from berth.compile import kernel
from berth.schedule.view import Array


@kernel
def sooner(jobs: Array, a: int, b: int) -> bool:
    """Whether row `a` finishes before row `b`; equal times by row."""
    if jobs[a].finish != jobs[b].finish:
        return jobs[a].finish < jobs[b].finish
    return a < b


@kernel
def put(jobs: Array, heap: Array, at: int, row: int) -> None:
    """Seats a row."""
    heap[at] = row
    jobs[row].heap_at = at


@kernel
def rise(jobs: Array, heap: Array, at: int) -> int:
    """Moves the row at `at` up until its parent is sooner."""
    row = heap[at]
    while at > 0:
        parent = (at - 1) // 2
        if not sooner(jobs, row, heap[parent]):
            break
        put(jobs, heap, at, heap[parent])
        at = parent
    put(jobs, heap, at, row)
    return at


@kernel
def sink(jobs: Array, heap: Array, size: int, at: int) -> None:
    """Moves the row at `at` down until both children are later."""
    row = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and sooner(jobs, heap[child + 1], heap[child]):
            child += 1
        if not sooner(jobs, heap[child], row):
            break
        put(jobs, heap, at, heap[child])
        at = child
    put(jobs, heap, at, row)


@kernel
def insert(jobs: Array, heap: Array, clock: Array, row: int) -> None:
    """Adds a row."""
    heap[clock[0].heap] = row
    clock[0].heap += 1
    rise(jobs, heap, clock[0].heap - 1)


@kernel
def remove(jobs: Array, heap: Array, clock: Array, row: int) -> None:
    """Takes a row out, wherever it stands."""
    at = jobs[row].heap_at
    clock[0].heap -= 1
    last = heap[clock[0].heap]
    jobs[row].heap_at = -1
    if last != row:
        put(jobs, heap, at, last)
        sink(jobs, heap, clock[0].heap, rise(jobs, heap, at))


@kernel
def update(jobs: Array, heap: Array, clock: Array, row: int) -> None:
    """Re-seats a row whose finish has changed."""
    sink(jobs, heap, clock[0].heap, rise(jobs, heap, jobs[row].heap_at))
