"""Records under a memory budget: the hot ones in memory, the cold ones in a file.

Index, records and the file's bookkeeping share the budget; when the index grows, records give way to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from berth.errors import InputError
from berth.train.tables.cold import Cold, Marks, Positions, cold_memory
from berth.train.tables.evict import choose, pin, touch
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, ENTRY_BYTES, FIRST_BITS, LOAD, Places
from berth.train.tables.initialise import Floats
from berth.train.tables.memory import reserve
from berth.train.tables.merge import distinct
from berth.train.tables.store import PIECE, Store
from berth.units import format_bytes

LEAST_HOT = 1024  # records; with fewer, every batch would go to the disk

_NEAR = 0.8  # of the keys that fit: it is time to say so
_BATCH = 32  # at least this part of the hot records leaves at once


def least_memory(width: int, keys: int) -> int:
    """The smallest budget for so many keys: the index as it grows, bookkeeping of cold records, the fewest hot ones."""
    record = 4 * width + 2  # with its marks
    entries = 1 << FIRST_BITS
    while True:
        smaller = entries // 2 * ENTRY_BYTES  # old and new index stand side by side while it grows
        at_once = (
            LEAST_HOT + smaller // record
        ) // 4  # keys for which room is made before they are looked up
        if keys + at_once <= entries * LOAD:
            return entries * ENTRY_BYTES + smaller + cold_memory(width, keys) + LEAST_HOT * record
        entries *= 2


def most_keys(width: int, memory_bytes: int) -> int:
    """How many keys a budget can hold."""
    low, high = 0, memory_bytes
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if least_memory(width, middle) <= memory_bytes else (low, middle - 1)
    return low


class TieredStore(Store):
    """A store that keeps to its budget."""

    def __init__(self, width: int, memory_bytes: int, folder: str | Path) -> None:
        super().__init__(width, memory_bytes // (4 * width))
        self.memory_bytes = memory_bytes
        self.cold = Cold(folder, width)
        self.chances = reserve(self.rows.most, np.uint8)
        self.hand = 0
        self.hot_limit(self.index.bytes)
        self._most_keys = most_keys(width, memory_bytes)
        self._told = False

    @property
    def bytes(self) -> int:
        """Memory of index, records and bookkeeping."""
        return self.index.bytes + self.rows.top * self._place_bytes + self.cold.memory_bytes

    @property
    def cold_bytes(self) -> int:
        """Size of the file of cold records."""
        return self.cold.file_bytes

    @property
    def _place_bytes(self) -> int:
        return self.rows.place_bytes + 1

    def hot_limit(self, index_bytes: int) -> int:
        """How many records fit beside an index of this size."""
        left = self.memory_bytes - index_bytes - self.cold.memory_bytes
        if left < LEAST_HOT * self._place_bytes:
            needed = self.memory_bytes - left + LEAST_HOT * self._place_bytes
            raise InputError(
                f"a budget of {format_bytes(self.memory_bytes)} is too small for {self.index.count} keys",
                hint=f"at least {format_bytes(needed)} are needed, or more servers",
            )
        return left // self._place_bytes

    def pieces(self, count: int) -> Iterator[slice]:
        """Parts of a batch that surely fit together; before each, room is made for its keys."""
        start = 0
        while start < count:
            step = max(1, self.hot_limit(self.index.bytes) // 4)
            part = slice(start, min(count, start + step))
            self._prepare(part.stop - part.start)
            yield part
            self._fit(0)  # evicting makes the file's bookkeeping grow
            start = part.stop

    def locate(self, keys: Keys) -> tuple[Places, int]:
        """As `Store.locate`; cold records come back."""
        places, missing, cold = self.index.find(keys)
        if cold:
            there = np.flatnonzero(places < EMPTY)
            fresh, inverse = distinct(keys[there])
            places[there] = self._fetch(fresh, places)[inverse]
        touch(self.chances, places)
        return places, missing

    def create(self, keys: Keys, beside: Places) -> Places:
        """As `Store.create`; the records at `beside` stay where they are."""
        places = self._take(len(keys), beside)
        self.index.move(keys, places)
        touch(self.chances, places)
        return places

    def remove(self, keys: Keys) -> Keys:
        """As `Store.remove`, hot or cold."""
        places = self.index.remove(keys)
        self.rows.free(places[places >= 0])
        self.chances[places[places >= 0]] = 0
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
        """All keys; cold ones in the order of the file, so that each block is read once."""
        keys, places = self.index.entries()
        keys = keys[np.argsort(places, kind="stable")[::-1]]
        for start in range(0, len(keys), PIECE):
            yield keys[start : start + PIECE]

    def clear_changed(self) -> None:
        """As `Store.clear_changed`."""
        super().clear_changed()
        self.cold.clear_changed()

    def _prepare(self, more: int) -> None:
        size = self.index.entries_for(more)
        grown = 0 if size == len(self.index.places) else size * ENTRY_BYTES
        self._fit(grown)  # old and new index stand side by side for a moment
        self.index.make_room(more)
        if not self._told and self.index.count + more > _NEAR * self._most_keys:
            self._told = True
            print(
                f"warning: a table's budget of {format_bytes(self.memory_bytes)} holds up to {self._most_keys:,} keys,"
                f" and has {self.index.count:,}; with more the training ends: give --memory more",
                file=sys.stderr,
            )

    def _fit(self, more_bytes: int) -> None:
        """Records give way until so many bytes more are free."""
        while self.rows.top > (limit := self.hot_limit(self.index.bytes + more_bytes)):
            for start in range(0, len(self.index.places), PIECE):  # in parts: this is when memory is short
                high = start + np.flatnonzero(self.index.places[start : start + PIECE] >= limit)
                self._leave(self.index.table[high], self.index.places[high])
            self.rows.cut(limit)

    def _take(self, count: int, beside: Places) -> Places:
        """Places in memory; records leave for them if they must."""
        limit = self.hot_limit(self.index.bytes)
        over = self.rows.count + count - limit
        if over > 0:
            pin(self.chances, beside, True)
            try:
                self._evict(over + limit // _BATCH)
            finally:
                pin(self.chances, beside, False)
        return self.rows.take(count)

    def _evict(self, count: int) -> None:
        keys, chosen = np.empty(count, np.int64), np.empty(count, np.int32)
        found, self.hand = choose(self.index.table, self.index.places, self.chances, self.hand, keys, chosen)
        try:
            self._leave(keys[:found], chosen[:found])
        finally:
            self.chances[chosen[:found]] = 0  # else a record that could not leave would stay for ever
        self._compact()

    def _leave(self, keys: Keys, places: Places) -> None:
        for start in range(0, len(keys), PIECE):
            some, here = keys[start : start + PIECE], places[start : start + PIECE]
            positions = self.cold.append(some, self.rows.read(here), self.rows.changed[here])
            self.index.move(some, _place(positions))
            self.chances[here] = 0
            self.rows.free(here)
            self.evicted += len(some)

    def _fetch(self, keys: Keys, beside: Places) -> Places:
        places = self._take(len(keys), beside)
        positions = _position(self.index.find(keys)[0])  # asked only now: making room may move them
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
        """Copy what lives in sparse blocks to the end of the file."""
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
