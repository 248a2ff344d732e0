"""Records under a memory budget: hot ones in memory, cold ones in a file.

Index, records and the file's bookkeeping share the budget; when the index grows, records are evicted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from berth.errors import InputError
from berth.train.tables.cold import ColdFile, Marks, Positions, cold_memory
from berth.train.tables.dedup import unique_keys
from berth.train.tables.evict import add_reference, choose_victims, pin
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, ENTRY_BYTES, FIRST_BITS, LOAD, Places
from berth.train.tables.initialise import Floats
from berth.train.tables.memory import reserve
from berth.train.tables.store import PIECE, Store
from berth.units import format_bytes

MIN_HOT_ROWS = 1024  # with fewer, every batch would go to disk

_NEAR = 0.8  # share of the keys that fit at which to warn
_BATCH = 32  # at least 1/32 of the hot records is evicted at once


def min_memory(width: int, keys: int) -> int:
    """Return the smallest budget for `keys`: growing index, bookkeeping of cold records, minimum of hot ones."""
    record = 4 * width + 2  # with its flags
    entries = 1 << FIRST_BITS
    while True:
        smaller = entries // 2 * ENTRY_BYTES  # old and new index coexist while it grows
        at_once = (
            MIN_HOT_ROWS + smaller // record
        ) // 4  # keys for which space is reserved before they are looked up
        if keys + at_once <= entries * LOAD:
            return entries * ENTRY_BYTES + smaller + cold_memory(width, keys) + MIN_HOT_ROWS * record
        entries *= 2


def max_keys(width: int, memory_bytes: int) -> int:
    """Return how many keys a budget can hold."""
    low, high = 0, memory_bytes
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if min_memory(width, middle) <= memory_bytes else (low, middle - 1)
    return low


class TieredStore(Store):
    """A store with a memory budget."""

    keeps_places = False

    def __init__(self, width: int, memory_bytes: int, folder: str | Path) -> None:
        super().__init__(width, memory_bytes // (4 * width))
        self.memory_bytes = memory_bytes
        self.cold = ColdFile(folder, width)
        self.references = reserve(self.rows.capacity, np.uint8)
        self.hand = 0
        self.hot_limit(self.index.bytes)
        self._max_keys = max_keys(width, memory_bytes)
        self._warned = False

    @property
    def bytes(self) -> int:
        """Return the memory of index, records and bookkeeping."""
        return self.index.bytes + self.rows.top * self._place_bytes + self.cold.memory_bytes

    @property
    def cold_bytes(self) -> int:
        """Return the size of the file of cold records."""
        return self.cold.file_bytes

    @property
    def _place_bytes(self) -> int:
        return self.rows.place_bytes + 1

    def hot_limit(self, index_bytes: int) -> int:
        """Return how many records fit with an index of this size."""
        left = self.memory_bytes - index_bytes - self.cold.memory_bytes
        if left < MIN_HOT_ROWS * self._place_bytes:
            needed = self.memory_bytes - left + MIN_HOT_ROWS * self._place_bytes
            raise InputError(
                f"a table's budget of {format_bytes(self.memory_bytes)} is too small"
                + (f" for {self.index.count:,} keys" if self.index.count else ", even without keys"),
                hint=f"it needs at least {format_bytes(needed)}: use a larger --memory, which all tables share, or more"
                " servers",
            )
        return left // self._place_bytes

    def pieces(self, count: int) -> Iterator[slice]:
        """Yield parts of a batch that fit in memory; space is reserved before each."""
        start = 0
        while start < count:
            step = max(1, self.hot_limit(self.index.bytes) // 4)
            part = slice(start, min(count, start + step))
            self._make_room(part.stop - part.start)
            yield part
            self._shrink_hot(0)  # eviction grows the file's bookkeeping
            start = part.stop

    def locate(self, keys: Keys) -> tuple[Places, int]:
        """As `Store.locate`; loads cold records."""
        places, missing, cold = self.index.find(keys)
        if cold:
            there = np.flatnonzero(places < EMPTY)
            fresh, inverse = unique_keys(keys[there])
            places[there] = self._fetch(fresh, places)[inverse]
        add_reference(self.references, places)
        return places, missing

    def create(self, keys: Keys, pinned: Places) -> Places:
        """As `Store.create`; the records at `pinned` are not evicted."""
        places = self._take_places(len(keys), pinned)
        self.index.move(keys, places)
        add_reference(self.references, places)
        return places

    def remove(self, keys: Keys) -> Keys:
        """As `Store.remove`, hot or cold."""
        places = self.index.remove(keys)
        self.rows.free(places[places >= 0])
        self.references[places[places >= 0]] = 0
        self.cold.drop(_position(places[places < EMPTY]))
        return keys[places != EMPTY]

    def records(self, keys: Keys) -> tuple[Floats, Marks]:
        """As `Store.records`; cold records stay cold."""
        places = self.index.find(keys)[0]
        out, changed = self.rows.read(places), np.zeros(len(keys), np.uint8)
        hot, cold = np.flatnonzero(places >= 0), np.flatnonzero(places < EMPTY)
        changed[hot] = self.rows.changed[places[hot]]
        if len(cold):
            out[cold], changed[cold] = self.cold.read(_position(places[cold]))
        return out, changed

    def in_parts(self) -> Iterator[Keys]:
        """Yield all keys; cold ones in file order, so that each block is read once."""
        keys, places = self.index.entries()
        keys = keys[np.argsort(places, kind="stable")[::-1]]
        for start in range(0, len(keys), PIECE):
            yield keys[start : start + PIECE]

    def clear_changed(self) -> None:
        """As `Store.clear_changed`."""
        super().clear_changed()
        self.cold.clear_changed()

    def _make_room(self, more: int) -> None:
        size = self.index.entries_for(more)
        grown = 0 if size == len(self.index.places) else size * ENTRY_BYTES
        self._shrink_hot(grown)  # old and new index coexist
        self.index.make_room(more)
        if not self._warned and self.index.count + more > _NEAR * self._max_keys:
            self._warned = True
            print(
                f"warning: a table's budget of {format_bytes(self.memory_bytes)} holds up to {self._max_keys:,} keys,"
                f" and has {self.index.count:,}; the run fails when it is full: increase --memory",
                file=sys.stderr,
            )

    def _shrink_hot(self, more_bytes: int) -> None:
        """Evict records until `more_bytes` are free."""
        while self.rows.top > (limit := self.hot_limit(self.index.bytes + more_bytes)):
            for start in range(0, len(self.index.places), PIECE):  # in parts, because memory is short
                high = start + np.flatnonzero(self.index.places[start : start + PIECE] >= limit)
                self._spill(self.index.table[high], self.index.places[high])
            self.rows.cut(limit)

    def _take_places(self, count: int, pinned: Places) -> Places:
        """Allocate places, evicting records if necessary."""
        limit = self.hot_limit(self.index.bytes)
        over = self.rows.count + count - limit
        if over > 0:
            pin(self.references, pinned, True)
            try:
                self._evict(over + limit // _BATCH)
            finally:
                pin(self.references, pinned, False)
        return self.rows.take(count)

    def _evict(self, count: int) -> None:
        keys, victims = np.empty(count, np.int64), np.empty(count, np.int32)
        found, self.hand = choose_victims(
            self.index.table, self.index.places, self.references, self.hand, keys, victims
        )
        try:
            self._spill(keys[:found], victims[:found])
        finally:
            # otherwise a record that failed to spill could never be evicted
            self.references[victims[:found]] = 0
        self._compact()

    def _spill(self, keys: Keys, places: Places) -> None:
        for start in range(0, len(keys), PIECE):
            some, here = keys[start : start + PIECE], places[start : start + PIECE]
            positions = self.cold.append(some, self.rows.read(here), self.rows.changed[here])
            self.index.move(some, _place(positions))
            self.references[here] = 0
            self.rows.free(here)
            self.evicted += len(some)

    def _fetch(self, keys: Keys, pinned: Places) -> Places:
        places = self._take_places(len(keys), pinned)
        positions = _position(self.index.find(keys)[0])  # after allocation, which may move them
        try:
            records, changed = self.cold.read(positions)
        except InputError:
            self.rows.free(places)
            raise
        self.rows.write(places, records)
        self.rows.changed[places] = changed
        self.index.move(keys, places)
        self.cold.drop(positions)
        self.fetched += len(keys)
        return places

    def _compact(self) -> None:
        """Move the live records of sparse blocks to the end of the file."""
        blocks = np.sort(self.cold.sparse())
        if not len(blocks):
            return
        keys, positions = self.cold.candidates(blocks)
        living = self.index.find(keys)[0] == _place(positions)
        keys, positions = keys[living], positions[living]
        records, changed = self.cold.read(positions)
        self.index.move(keys, _place(self.cold.append(keys, records, changed)))
        self.cold.drop(positions)


def _place(positions: Positions) -> Places:
    return (EMPTY - 1 - positions).astype(np.int32)


def _position(places: Places) -> Positions:
    return EMPTY - 1 - places.astype(np.int64)
