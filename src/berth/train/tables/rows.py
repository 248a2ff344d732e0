"""Row records in memory: weights, optimiser state, decay columns.

One array holds all records; it takes memory only as rows are created (`memory.reserve`). Freed places are reused first.
"""

from __future__ import annotations

import numpy as np

from berth.errors import InputError
from berth.native.kernels import entry
from berth.train.tables.index import MAX_ENTRIES, Places
from berth.train.tables.initialise import Floats
from berth.train.tables.memory import physical_bytes, prefetch, release_pages, reserve

_AHEAD = 16
_LINE = 16  # floats of a cache line
_MIN_BYTES = 4 << 20


@entry
def _gather(data: Floats, width: int, columns: int, places: Places, out: Floats) -> None:
    near = len(places) - _AHEAD
    wide, wanted = np.uint64(width), np.uint64(columns)  # unsigned: inner loops vectorise
    for number in range(len(places)):
        if number < near and places[number + _AHEAD] >= 0:
            soon = np.int64(places[number + _AHEAD]) * width
            for line in range(0, columns, _LINE):
                prefetch(data, soon + line)
            prefetch(data, soon + columns - 1)
        target = np.uint64(number) * wanted
        if places[number] < 0:
            for column in range(wanted):
                out[target + column] = 0
            continue
        source = np.uint64(places[number]) * wide
        for column in range(wanted):
            out[target + column] = data[source + column]


@entry
def _scatter(data: Floats, width: int, places: Places, values: Floats) -> None:
    for number in range(len(places)):
        target, source = np.int64(places[number]) * width, number * width
        for column in range(width):
            data[target + column] = values[source + column]


def _max_rows(width: int) -> int:
    """Return how many rows fit in physical memory, or in part of what the system grants."""
    wanted = capacity = min(physical_bytes() // (4 * width), MAX_ENTRIES)
    while capacity * width * 4 >= _MIN_BYTES:
        try:
            reserve(capacity * width, np.float32)
        except OSError:
            capacity //= 2
        else:
            return capacity if capacity == wanted else capacity // 4  # leave memory for others
    raise InputError(
        "the system grants no memory for a table",
        hint="check `ulimit -v` and the sysctl vm.overcommit_memory, or set a memory budget",
    )


class Rows:
    """Places for records of `width` floats, up to `capacity` or the physical memory."""

    def __init__(self, width: int, capacity: int | None = None) -> None:
        self.width = width
        self.capacity = min(capacity, MAX_ENTRIES) if capacity else _max_rows(width)
        self.data: Floats = reserve(self.capacity * width, np.float32)
        self.changed = reserve(self.capacity, np.uint8)  # since the last save
        self.top = 0  # places from here on were never used
        self._free: list[Places] = []
        self._free_count = 0

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return self.top - self._free_count

    @property
    def bytes(self) -> int:
        """Return the memory of records, including free ones."""
        return self.top * self.place_bytes

    @property
    def place_bytes(self) -> int:
        """Return the memory of one record."""
        return 4 * self.width + 1

    def take(self, count: int) -> Places:
        """Allocate places, the last freed ones first."""
        parts: list[Places] = []
        left = count
        while left and self._free:
            batch = self._free.pop()
            if len(batch) > left:
                self._free.append(batch[left:])
                batch = batch[:left]
            parts.append(batch)
            left -= len(batch)
        self._free_count -= count - left
        if self.top + left > self.capacity:
            raise InputError(
                f"the table does not fit the memory of this machine ({self.capacity} rows of {self.width} floats)",
                hint="set a memory budget and a folder for cold rows, or use more servers",
            )
        parts.append(np.arange(self.top, self.top + left, dtype=np.int32))
        self.top += left
        return np.concatenate(parts)

    def free(self, places: Places) -> None:
        """Free places."""
        if len(places):
            self.changed[places] = 0
            self._free.append(places)
            self._free_count += len(places)

    def cut(self, top: int) -> None:
        """Release the memory of all places from `top` on; they must be free."""
        if top >= self.top:
            return
        kept = [batch[batch < top] for batch in self._free]
        self._free = [batch for batch in kept if len(batch)]
        self._free_count = sum(len(batch) for batch in self._free)
        self.top = top
        release_pages(self.data, top * self.width)
        release_pages(self.changed, top)

    def read(self, places: Places) -> Floats:
        """Return whole records; zeros for negative places."""
        out = np.empty((len(places), self.width), np.float32)
        self.read_weights(places, out)
        return out

    def read_weights(self, places: Places, out: Floats) -> None:
        """Copy the first columns of records to `out`; zeros for negative places."""
        _gather(self.data, self.width, out.shape[1], places, out.reshape(-1))

    def write(self, places: Places, values: Floats) -> None:
        """Write whole records."""
        _scatter(self.data, self.width, places, values.reshape(-1))
