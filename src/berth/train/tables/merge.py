"""Duplicate keys of a batch made one: their gradients are summed in the order of the batch.

The distinct keys come in the order in which they are first seen, so the result depends on the batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

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
def add_rows(values: Floats, width: int, which: NDArray[np.int32], out: Floats) -> None:
    """A key's first occurrence is known by its number: the distinct stand in the order they are seen."""
    seen, wide = 0, np.uint64(width)  # unsigned: inner loops need no look at signs, and run in vectors
    for number in range(len(which)):
        target, source = np.uint64(which[number]) * wide, np.uint64(number) * wide
        if which[number] == seen:
            seen += 1
            for column in range(wide):
                out[target + column] = np.float32(0) + values[source + column]
        else:
            for column in range(wide):
                out[target + column] += values[source + column]


@entry
def spread_rows(rows: Floats, width: int, which: NDArray[np.int32], out: Floats) -> None:
    """Write the row of each key wherever the batch has it."""
    wide = np.uint64(width)
    for number in range(len(which)):
        source, target = np.uint64(which[number]) * wide, np.uint64(number) * wide
        for column in range(wide):
            out[target + column] = rows[source + column]


@entry
def same_keys(keys: Keys, others: Keys) -> bool:
    """Whether two batches of one length are equal."""
    for start in range(0, len(keys), 256):
        unlike = np.int64(0)
        for number in range(start, min(start + 256, len(keys))):
            unlike |= keys[number] ^ others[number]
        if unlike:
            return False
    return True


def distinct(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    """The distinct keys, and for each key of the batch which of them it is."""
    bits = max(2 * len(keys) - 1, 1).bit_length()
    inverse = np.empty(len(keys), np.int32)
    first = np.full(1 << bits, -1, np.int32)
    return _distinct(keys, first, np.uint64(64 - bits), inverse), inverse


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """A batch of keys, of which each distinct one was found: good for its pull and its push."""

    keys: Keys
    unique: Keys
    inverse: NDArray[np.int32]

    @classmethod
    def of(cls, keys: Keys) -> Merged:
        """Finds them; the keys must not be changed afterwards."""
        return cls(keys, *distinct(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def is_of(self, keys: Keys) -> bool:
        """Whether it is of these keys."""
        return len(keys) == len(self.keys) and bool(same_keys(self.keys, keys))

    def summed(self, values: Floats) -> Floats:
        """The sums of the rows of `values` that belong to the same key; of one alone to the last bit itself."""
        if len(self.unique) == len(self.keys):
            return values
        width = values.shape[1]
        out = np.empty((len(self.unique), width), np.float32)
        add_rows(values.reshape(-1), width, self.inverse, out.reshape(-1))
        return out

    def spread(self, rows: Floats, out: Floats) -> None:
        """The row of each distinct key, wherever the batch has it."""
        spread_rows(rows.reshape(-1), out.shape[1], self.inverse, out.reshape(-1))
