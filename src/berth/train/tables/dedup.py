"""Deduplication of the keys of a batch; gradients of one key are summed in batch order.

Unique keys are in order of first occurrence, so the result depends on the batch only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry
from berth.train.tables.hashing import Keys
from berth.train.tables.index import home
from berth.train.tables.initialise import Floats


@entry
def _unique_keys(keys: Keys, first: NDArray[np.int32], shift: np.uint64, inverse: NDArray[np.int32]) -> Keys:
    """`first` is a small hash table of key numbers, -1 if empty; it fits the CPU caches."""
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
    """Sum rows by key; unique keys are in order of first occurrence, so a new number is a first occurrence."""
    seen, wide = 0, np.uint64(width)  # unsigned: no sign checks, so inner loops vectorise
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
    """Write the row of each key to its positions in the batch."""
    wide = np.uint64(width)
    for number in range(len(which)):
        source, target = np.uint64(which[number]) * wide, np.uint64(number) * wide
        for column in range(wide):
            out[target + column] = rows[source + column]


@entry
def same_keys(keys: Keys, others: Keys) -> bool:
    """Return whether two batches of equal length are equal."""
    for start in range(0, len(keys), 256):
        unlike = np.int64(0)
        for number in range(start, min(start + 256, len(keys))):
            unlike |= keys[number] ^ others[number]
        if unlike:
            return False
    return True


def unique_keys(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    """Return the unique keys, and for each key of the batch its index among them."""
    bits = max(2 * len(keys) - 1, 1).bit_length()
    inverse = np.empty(len(keys), np.int32)
    first = np.full(1 << bits, -1, np.int32)
    return _unique_keys(keys, first, np.uint64(64 - bits), inverse), inverse


@dataclass(frozen=True, slots=True, eq=False)
class DedupedKeys:
    """A batch of keys with its unique keys, shared by pull and push."""

    keys: Keys
    unique: Keys
    inverse: NDArray[np.int32]

    @classmethod
    def of(cls, keys: Keys) -> DedupedKeys:
        """Deduplicate keys; they must not be changed afterwards."""
        return cls(keys, *unique_keys(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def matches(self, keys: Keys) -> bool:
        """Return whether this is the batch of these keys."""
        return len(keys) == len(self.keys) and bool(same_keys(self.keys, keys))

    def summed(self, values: Floats) -> Floats:
        """Return the sums of `values` by key; a single value is kept bit for bit."""
        if len(self.unique) == len(self.keys):
            return values
        width = values.shape[1]
        out = np.empty((len(self.unique), width), np.float32)
        add_rows(values.reshape(-1), width, self.inverse, out.reshape(-1))
        return out

    def spread(self, rows: Floats, out: Floats) -> None:
        """Write the row of each unique key to its positions in the batch."""
        spread_rows(rows.reshape(-1), out.shape[1], self.inverse, out.reshape(-1))
