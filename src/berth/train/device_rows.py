"""All rows of the tables of this process in the memory of an accelerator, which takes more of it as they are created.

The table in host memory keeps a record of every row, as of the last checkpoint.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.device_cache import DeviceCache
from berth.train.device_store import DeviceCachedStore
from berth.train.devices import SideStream
from berth.train.sparse import TableSpec
from berth.train.tables import State, Table
from berth.train.tables.dedup import DedupedKeys
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY
from berth.train.tables.initialise import Floats
from berth.train.tables.records import has_rows
from berth.units import format_bytes

_FIRST_PLACES = 1024


class DeviceRows(DeviceCache):
    """A cache that grows instead of evicting: every row of the table that was used has a place."""

    def __init__(self, name: str, table: Table, device: torch.device, stream: SideStream) -> None:
        super().__init__(table, device, _FIRST_PLACES, stream)
        self._name = name

    def pull(self, keys: Keys) -> Tensor:
        """Return the row of each key; missing rows are created, on the device."""
        self._reserve(DedupedKeys.of(keys).unique)
        return super().pull(keys)

    def push(self, keys: Keys, gradients: Tensor, shows: Floats | None, clicks: Floats | None) -> None:
        """Apply gradients; rows that were only peeked at are created first."""
        self.place(keys)
        super().push(keys, gradients, shows, clicks)

    def place(self, keys: Keys) -> None:
        """Copy rows without a place to the device; those of keys that need no admission are created."""
        unplaced = keys[self._places.find(keys) == EMPTY]
        if self.table.admission_filter is not None:
            unplaced = unplaced[has_rows(self.table, unplaced)]
        if len(unplaced):
            self.pull(unplaced)

    def _reserve(self, unique: Keys) -> None:
        """Take device memory for the rows of unique keys that have no place."""
        missing = int(np.count_nonzero(self._places.find(unique) == EMPTY))
        needed = len(self._places) + missing
        if needed > self._places.capacity:
            self._grow(needed, max(needed, self._places.capacity * 3 // 2))

    def _grow(self, needed: int, wanted: int) -> None:
        try:
            self._weights = _longer(self._weights, wanted)
            self._state = _longer(self._state, wanted)
        except torch.OutOfMemoryError as error:
            if wanted > needed:
                self._grow(needed, needed)
                return
            size = format_bytes(4 * self._columns * needed)
            raise InputError(
                f"{self.device} is out of memory: {needed:,} rows of table {self._name!r} take {size} in the memory of"
                " this worker",
                hint="use more workers, or --tables servers",
            ) from error
        self._places.grow(wanted)


class DeviceTables(DeviceCachedStore):
    """A store of this process whose rows are all in device memory."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table into device memory."""
        super().load(table, state)
        cache = self._cache(table)
        assert isinstance(cache, DeviceRows)
        cache.place(state.keys)

    def _make_cache(self, spec: TableSpec, places: int) -> DeviceCache:
        del places  # as many as there are rows
        return DeviceRows(spec.name, self._table(spec.name), self.device, self._stream)


def _longer(rows: Tensor, count: int) -> Tensor:
    """Return rows with zeros after them; a table that is long enough is not copied."""
    if len(rows) >= count:
        return rows
    longer = rows.new_zeros((count, rows.shape[1]))
    longer[: len(rows)] = rows
    return longer
