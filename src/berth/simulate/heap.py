"""The running jobs by finish time: a binary heap in which every job knows its index."""

from __future__ import annotations

from berth.native.kernels import kernel
from berth.schedule.records import Array
from berth.simulate.engine_state import EngineState


@kernel
def sooner(accounts: Array, a: int, b: int) -> bool:
    """Whether row `a` finishes before row `b`; equal times by row."""
    if accounts[a].finish_s != accounts[b].finish_s:
        return accounts[a].finish_s < accounts[b].finish_s
    return a < b


@kernel
def put(accounts: Array, heap: Array, at: int, row: int) -> None:
    """Stores a row at an index."""
    heap[at] = row
    accounts[row].heap_index = at


@kernel
def rise(accounts: Array, heap: Array, at: int) -> int:
    """Moves the row at `at` up until its parent is sooner; returns its new index."""
    row = heap[at]
    while at > 0:
        parent = (at - 1) // 2
        if not sooner(accounts, row, heap[parent]):
            break
        put(accounts, heap, at, heap[parent])
        at = parent
    put(accounts, heap, at, row)
    return at


@kernel
def sink(accounts: Array, heap: Array, size: int, at: int) -> None:
    """Moves the row at `at` down until both children are later."""
    row = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and sooner(accounts, heap[child + 1], heap[child]):
            child += 1
        if not sooner(accounts, heap[child], row):
            break
        put(accounts, heap, at, heap[child])
        at = child
    put(accounts, heap, at, row)


@kernel
def insert(engine: EngineState, row: int) -> None:
    """Adds a row."""
    clock = engine.clock[0]
    engine.heap[clock.heap] = row
    clock.heap += 1
    rise(engine.accounts, engine.heap, clock.heap - 1)


@kernel
def remove(engine: EngineState, row: int) -> None:
    """Removes a row."""
    accounts, heap, clock = engine.accounts, engine.heap, engine.clock[0]
    at = accounts[row].heap_index
    clock.heap -= 1
    last = heap[clock.heap]
    accounts[row].heap_index = -1
    if last != row:
        put(accounts, heap, at, last)
        sink(accounts, heap, clock.heap, rise(accounts, heap, at))


@kernel
def update(engine: EngineState, row: int) -> None:
    """Restores the order of the heap after a row's finish time has changed."""
    at = rise(engine.accounts, engine.heap, engine.accounts[row].heap_index)
    sink(engine.accounts, engine.heap, engine.clock[0].heap, at)
