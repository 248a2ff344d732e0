"""Keys and their records: the index and the rows behind it, as one thing."""

from __future__ import annotations

import numpy as np

from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Index, Places
from berth.train.tables.rows import Rows


class Store:
    """Records by key, all in memory."""

    def __init__(self, width: int) -> None:
        self.index = Index()
        self.rows = Rows(width)

    @property
    def bytes(self) -> int:
        """Memory of the index and of the records."""
        return self.index.bytes + self.rows.bytes

    def locate(self, keys: Keys) -> tuple[Places, int]:
        """Where the record of each key stands (`EMPTY` if it has none), and how many have none."""
        places, missing, _ = self.index.find(keys)
        return places, missing

    def create(self, keys: Keys) -> Places:
        """Places for keys that have none; each key once. The caller fills the records."""
        places = self.rows.take(len(keys))
        self.index.put(keys, places)
        return places

    def remove(self, keys: Keys) -> int:
        """Forget records; how many there were."""
        places = self.index.remove(keys)
        taken = places[places != EMPTY]
        self.rows.free(taken)
        return len(taken)

    def keys(self) -> Keys:
        """Every key there is, in ascending order: the same whatever happened in which order."""
        keys = self.index.entries()[0]
        keys.sort()
        return keys


def as_keys(keys: object) -> Keys:
    """Any sequence of integers as 64-bit keys; unsigned ones keep their bits."""
    array = np.ascontiguousarray(np.asarray(keys).reshape(-1))
    if array.dtype == np.uint64:
        return array.view(np.int64)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"keys are integers, not {array.dtype}")
    return array.astype(np.int64, copy=False)
