"""Ranked rows one after the other, first to go first: a heap, where few of many are looked at."""

from __future__ import annotations

import numpy as np

from berth.native.kernels import kernel
from berth.schedule.queue import precedes
from berth.schedule.records import Array


@kernel
def new_ranking(ranks: Array) -> Array:
    """A heap of the indices of `ranks` (BOUND)."""
    heap = np.arange(len(ranks))
    for at in range(len(ranks) // 2 - 1, -1, -1):
        sift_down(ranks, heap, len(ranks), at)
    return heap


@kernel
def take_first(ranks: Array, heap: Array, size: int) -> int:
    """Removes the index that goes first from the first `size` entries of a heap; `size - 1` are left."""
    first = heap[0]
    heap[0] = heap[size - 1]
    sift_down(ranks, heap, size - 1, 0)
    return first


@kernel
def sift_down(ranks: Array, heap: Array, size: int, at: int) -> None:
    """Moves an entry down until it goes before both of its children."""
    moved = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and precedes(ranks[heap[child + 1]], ranks[heap[child]]):
            child += 1
        if not precedes(ranks[heap[child]], ranks[moved]):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved
