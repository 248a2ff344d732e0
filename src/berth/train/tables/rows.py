"""Records of rows in memory: weights, then the optimiser's state, then what the life cycle counts.

One array holds them all; it takes memory only as rows are made (`memory.reserve`). Places that fall free are
given out again before new ones.
"""

from __future__ import annotations

import numpy as np

from berth.compile import entry
from berth.errors import InputError
from berth.train.tables.index import MOST_ENTRIES, Places
from berth.train.tables.initialise import Floats
from berth.train.tables.memory import give_back, physical_bytes, prefetch, reserve

_AHEAD = 16
_LINE = 16  # floats of a cache line
_LEAST_BYTES = 4 << 20


@entry
def _gather(data: Floats, width: int, columns: int, places: Places, out: Floats) -> None:
    near = len(places) - _AHEAD
    wide, wanted = np.uint64(width), np.uint64(columns)  # unsigned: inner loops run in vectors
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


def _most_rows(width: int) -> int:
    """What the machine's memory could hold; where the system does not promise that much, a part of what it does."""
    wanted = most = min(physical_bytes() // (4 * width), MOST_ENTRIES)
    while most * width * 4 >= _LEAST_BYTES:
        try:
            reserve(most * width, np.float32)
        except OSError:
            most //= 2
        else:
            return most if most == wanted else most // 4  # others need memory too
    raise InputError(
        "the system gives this process no memory for a table",
        hint="see `ulimit -v` and the sysctl vm.overcommit_memory, or give the table a memory budget",
    )


class Rows:
    """Places for records of `width` floats: at most so many, or what the machine's memory could hold."""

    def __init__(self, width: int, most: int | None = None) -> None:
        self.width = width
        self.most = min(most, MOST_ENTRIES) if most else _most_rows(width)
        self.data: Floats = reserve(self.most * width, np.float32)
        self.changed = reserve(self.most, np.uint8)  # since the last save
        self.top = 0  # places from here on were never given out
        self._free: list[Places] = []
        self._free_count = 0

    @property
    def count(self) -> int:
        """Rows that hold a place."""
        return self.top - self._free_count

    @property
    def bytes(self) -> int:
        """Memory taken by records, free ones too."""
        return self.top * self.place_bytes

    @property
    def place_bytes(self) -> int:
        """Memory of one record."""
        return 4 * self.width + 1

    def take(self, count: int) -> Places:
        """So many places, the ones freed last first."""
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
        if self.top + left > self.most:
            raise InputError(
                f"the rows of the table do not fit the machine's memory ({self.most} rows of {self.width} floats)",
                hint="give the table a memory budget and a folder for cold rows, or use more servers",
            )
        parts.append(np.arange(self.top, self.top + left, dtype=np.int32))
        self.top += left
        return np.concatenate(parts)

    def free(self, places: Places) -> None:
        """Give places back."""
        if len(places):
            self.changed[places] = 0
            self._free.append(places)
            self._free_count += len(places)

    def cut(self, top: int) -> None:
        """Return the memory of all places from `top` on; no row may stand there any more."""
        if top >= self.top:
            return
        kept = [batch[batch < top] for batch in self._free]
        self._free = [batch for batch in kept if len(batch)]
        self._free_count = sum(len(batch) for batch in self._free)
        self.top = top
        give_back(self.data, top * self.width)
        give_back(self.changed, top)

    def read(self, places: Places) -> Floats:
        """Whole records; zeros for places below zero."""
        out = np.empty((len(places), self.width), np.float32)
        self.read_weights(places, out)
        return out

    def read_weights(self, places: Places, out: Floats) -> None:
        """The first columns of records, as many as `out` has; zeros for places below zero."""
        _gather(self.data, self.width, out.shape[1], places, out.reshape(-1))

    def write(self, places: Places, values: Floats) -> None:
        """Set whole records."""
        _scatter(self.data, self.width, places, values.reshape(-1))
