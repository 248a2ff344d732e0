"""Duplicate keys of a batch made one: their gradients are summed in the order of the batch.

The distinct keys come in the order in which they are first seen, so the result depends on the batch alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry
from berth.train.tables.hashing import Keys
from berth.train.tables.index import home
from berth.train.tables.initialise import Floats


@entry
def _distinct(keys: Keys, first: NDArray[np.int32], shift: np.uint64, inverse: NDArray[np.int32]) -> Keys:
    """`first` is a small table of numbers of distinct keys, -1 where empty; it fits the processor's caches."""
    mask, count = len(first) - 1, 0
    found = np.empty(len(keys), np.int64)
    for number in range(len(keys)):
        key = keys[number]
        at = home(key, shift)
        while first[at] >= 0 and found[first[at]] != key:
            at = (at + 1) & mask
        if first[at] < 0:
            first[at] = count
            found[count] = key
            count += 1
        inverse[number] = first[at]
    return found[:count]


@entry
def _sum(inverse: NDArray[np.int32], width: int, values: Floats, out: Floats) -> None:
    wide = np.uint64(width)  # unsigned: the inner loop needs no look at signs, and runs in vectors
    for number in range(len(inverse)):
        target, source = np.uint64(inverse[number]) * wide, np.uint64(number) * wide
        for column in range(wide):
            out[target + column] += values[source + column]


def distinct(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    """The distinct keys, and for each key of the batch which of them it is."""
    bits = max(2 * len(keys) - 1, 1).bit_length()
    inverse = np.empty(len(keys), np.int32)
    first = np.full(1 << bits, -1, np.int32)
    return _distinct(keys, first, np.uint64(64 - bits), inverse), inverse


def summed(inverse: NDArray[np.int32], count: int, values: Floats) -> Floats:
    """The sums of the rows of `values` that belong to the same key."""
    width = values.shape[1]
    out = np.zeros((count, width), np.float32)
    _sum(inverse, width, values.reshape(-1), out.reshape(-1))
    return out
