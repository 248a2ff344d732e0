"""Hash index from 64-bit keys to places: open addressing, linear probing, no tombstones.

The home of a key is given by the upper bits of its hash, so growing walks old and new memory in the same order. An
entry is empty by its place, not by its key, so every 64-bit key is allowed. Deletion shifts later entries back, so
probes stay as short as if the key had never been inserted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.native.kernels import entry, inlined, kernel
from berth.train.tables.hashing import Keys, mix
from berth.train.tables.memory import prefetch

Places = NDArray[np.int32]

EMPTY = -1  # smaller values: positions in the cold tier
MAX_ENTRIES = 2**31 - 2
ENTRY_BYTES = 12

_AHEAD = 16
FIRST_BITS = 6
LOAD = 0.75  # expected probes: 8.5 for a miss, 2.5 for a hit (Knuth 6.4)


@inlined
def home(key: int, shift: np.uint64) -> np.int64:
    """Return the first entry to probe for a key."""
    return np.int64(mix(np.uint64(key)) >> shift)


@inlined
def seek(table: Keys, places: Places, shift: np.uint64, key: int) -> np.int64:
    """Return the entry of a key, or the empty entry for it."""
    mask = len(places) - 1
    at = home(key, shift)
    while places[at] != EMPTY and table[at] != key:
        at = (at + 1) & mask
    return at


@entry
def _find(table: Keys, places: Places, shift: np.uint64, keys: Keys, out: Places) -> tuple[int, int]:
    missing, cold = 0, 0
    near = max(len(keys) - _AHEAD, 0)
    for number in range(len(keys)):
        if number < near:
            soon = home(keys[number + _AHEAD], shift)
            prefetch(table, soon)
            prefetch(places, soon)
        place = places[seek(table, places, shift, keys[number])]
        out[number] = place
        missing += place == EMPTY
        cold += place < EMPTY
    return missing, cold


@entry
def _put(table: Keys, places: Places, shift: np.uint64, keys: Keys, values: Places) -> int:
    """Set the places of keys; returns how many were new."""
    fresh = 0
    for number in range(len(keys)):
        at = seek(table, places, shift, keys[number])
        fresh += places[at] == EMPTY
        table[at] = keys[number]
        places[at] = values[number]
    return fresh


@entry
def _grow(table: Keys, places: Places, wide_table: Keys, wide_places: Places, shift: np.uint64) -> None:
    for number in range(len(places)):
        if places[number] != EMPTY:
            at = seek(wide_table, wide_places, shift, table[number])
            wide_table[at] = table[number]
            wide_places[at] = places[number]


@kernel
def close_hole(table: Keys, places: Places, shift: np.uint64, hole: np.int64) -> None:
    """Shift entries after a hole back towards their homes."""
    mask = len(places) - 1
    at = (hole + 1) & mask
    while places[at] != EMPTY:
        if ((at - home(table[at], shift)) & mask) >= ((at - hole) & mask):
            table[hole] = table[at]
            places[hole] = places[at]
            hole = at
        at = (at + 1) & mask
    places[hole] = EMPTY


@entry
def _remove(table: Keys, places: Places, shift: np.uint64, keys: Keys, out: Places) -> int:
    removed = 0
    for number in range(len(keys)):
        at = seek(table, places, shift, keys[number])
        out[number] = places[at]
        if places[at] != EMPTY:
            removed += 1
            close_hole(table, places, shift, at)
    return removed


class Index:
    """Keys and their places; a place is any 32-bit number except `EMPTY`."""

    def __init__(self) -> None:
        self.count = 0
        self.table = np.empty(1 << FIRST_BITS, np.int64)
        self.places = np.full(1 << FIRST_BITS, EMPTY, np.int32)
        self.shift = np.uint64(64 - FIRST_BITS)

    @property
    def bytes(self) -> int:
        """Return the memory of the entries."""
        return len(self.places) * ENTRY_BYTES

    def find(self, keys: Keys) -> tuple[Places, int, int]:
        """Return the place of each key (`EMPTY` if none), how many have none, and how many are cold."""
        out = np.empty(len(keys), np.int32)
        missing, cold = _find(self.table, self.places, self.shift, keys, out)
        return out, missing, cold

    def put(self, keys: Keys, places: Places) -> None:
        """Set the places of keys, new or known."""
        self.make_room(len(keys))
        self.move(keys, places)

    def move(self, keys: Keys, places: Places) -> None:
        """As `put`, for known keys, or after `make_room`."""
        self.count += _put(self.table, self.places, self.shift, keys, places)

    def remove(self, keys: Keys) -> Places:
        """Remove keys; returns their places (`EMPTY` if unknown)."""
        out = np.empty(len(keys), np.int32)
        self.count -= _remove(self.table, self.places, self.shift, keys, out)
        return out

    def entries(self) -> tuple[Keys, Places]:
        """Return all keys and their places, in index order."""
        taken = np.flatnonzero(self.places != EMPTY)
        return self.table[taken], self.places[taken]

    def entries_for(self, more: int) -> int:
        """Return the number of entries needed for `more` additional keys."""
        if self.count + more > MAX_ENTRIES:
            raise InputError(f"an index holds at most {MAX_ENTRIES} keys", hint="use more shards")
        size = len(self.places)
        while self.count + more > size * LOAD:
            size *= 2
        return size

    def make_room(self, more: int) -> None:
        """Grow for `more` additional keys."""
        size = self.entries_for(more)
        if size == len(self.places):
            return
        table, places = np.empty(size, np.int64), np.full(size, EMPTY, np.int32)
        shift = np.uint64(64 - (size.bit_length() - 1))
        _grow(self.table, self.places, table, places, shift)
        self.table, self.places, self.shift = table, places, shift
