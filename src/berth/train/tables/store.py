"""Records by key: an index and the rows it points to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Index, Places
from berth.train.tables.initialise import Floats
from berth.train.tables.rows import Rows

PIECE = 1 << 16  # records processed at a time


class Store:
    """Records by key, all in memory."""

    keeps_places = True  # a record stays where it is until it is removed

    def __init__(self, width: int, most: int | None = None) -> None:
        self.index = Index()
        self.rows = Rows(width, most)
        self.fetched = 0  # records loaded from the cold tier
        self.evicted = 0
        self.removals = 0  # calls of `remove`

    @property
    def bytes(self) -> int:
        """Return the memory of index and records."""
        return self.index.bytes + self.rows.bytes

    @property
    def cold_bytes(self) -> int:
        """Return the disk usage."""
        return 0

    def pieces(self, count: int) -> Iterator[slice]:
        """Yield the parts in which a batch must be processed: here, the whole."""
        yield slice(0, count)

    def locate(self, keys: Keys) -> tuple[Places, int]:
        """Return the place of each key (`EMPTY` if none), and how many have none."""
        places, missing, _ = self.index.find(keys)
        return places, missing

    def create(self, keys: Keys, pinned: Places) -> Places:
        """Allocate places for unique keys without one; the caller fills the records."""
        del pinned  # records never move here
        places = self.rows.take(len(keys))
        self.index.put(keys, places)
        return places

    def remove(self, keys: Keys) -> Keys:
        """Remove records; returns the keys that had one."""
        self.removals += 1
        places = self.index.remove(keys)
        self.rows.free(places[places != EMPTY])
        return keys[places != EMPTY]

    def records(self, keys: Keys) -> tuple[Floats, NDArray[np.uint8]]:
        """Return the records of known keys, and whether each changed since the last save."""
        places = self.index.find(keys)[0]
        return self.rows.read(places), self.rows.changed[places]

    def in_parts(self) -> Iterator[Keys]:
        """Yield all keys in parts."""
        keys = self.index.entries()[0]
        for start in range(0, len(keys), PIECE):
            yield keys[start : start + PIECE]

    def clear_changed(self) -> None:
        """Mark all records as saved."""
        self.rows.changed[: self.rows.top] = 0


def as_keys(keys: object) -> Keys:
    """Return integers as 64-bit keys; unsigned ones keep their bits."""
    array = np.ascontiguousarray(np.asarray(keys).reshape(-1))
    if array.dtype == np.uint64:
        return array.view(np.int64)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"keys must be integers, got {array.dtype}")
    return array.astype(np.int64, copy=False)
