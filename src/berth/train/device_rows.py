"""All rows of the tables of this process in the memory of an accelerator, which takes more of it as they are created.

The table in host memory keeps a record of every row, as of the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.device_cache import DeviceCache
from berth.train.device_store import DeviceCachedStore
from berth.train.devices import SideStream
from berth.train.local import LocalStore
from berth.train.sparse import Floats, Keys, TableSpec
from berth.train.tables import State, Table
from berth.train.tables.dedup import DedupedKeys
from berth.train.tables.hashing import Keys as Int64Keys
from berth.train.tables.index import EMPTY
from berth.train.tables.records import has_rows
from berth.units import format_bytes

_FIRST_PLACES = 1024


class DeviceRows(DeviceCache):
    """A cache that grows instead of evicting: every row of the table that was used has a place."""

    def __init__(self, table: Table, device: torch.device, stream: SideStream) -> None:
        super().__init__(table, device, _FIRST_PLACES, stream)

    @property
    def bytes(self) -> int:
        """Return the device memory of all places."""
        return 4 * self._columns * self._places.capacity

    def pull(self, keys: Int64Keys) -> Tensor:
        """Return the row of each key; missing rows are created, on the device."""
        self._reserve(DedupedKeys.of(keys).unique)
        return super().pull(keys)

    def push(self, keys: Int64Keys, gradients: Tensor, shows: Floats | None, clicks: Floats | None) -> None:
        """Apply gradients; rows that were only peeked at are created first."""
        self.place(keys)
        super().push(keys, gradients, shows, clicks)

    def place(self, keys: Int64Keys) -> None:
        """Copy rows without a place to the device; those of keys that need no admission are created."""
        unplaced = keys[self._places.find(keys) == EMPTY]
        if self.table.admission_filter is not None:
            unplaced = unplaced[has_rows(self.table, unplaced)]
        if len(unplaced):
            ahead, self._prefetched = self._prefetched, None  # has rows of this step that get no place
            self.pull(unplaced)
            self._prefetched = ahead

    def _reserve(self, unique: Int64Keys) -> None:
        """Take device memory for the rows of unique keys that have no place."""
        missing = int(np.count_nonzero(self._places.find(unique) == EMPTY))
        needed = len(self._places) + missing
        if needed > self._places.capacity:
            try:
                self._grow(max(needed, self._places.capacity * 3 // 2))
            except torch.OutOfMemoryError:
                self._grow(needed)

    def _grow(self, places: int) -> None:
        self._weights = _longer(self._weights, places)
        self._state = _longer(self._state, places)
        self._places.grow(places)


class DeviceTables(DeviceCachedStore):
    """A store of this process whose rows are all in device memory."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)

    def pull_to_device(self, table: str, keys: Keys, *, create: bool = True) -> Tensor:
        """Return a row for each key on the device."""
        with self._reporting_size(table):
            return super().pull_to_device(table, keys, create=create)

    def push_from_device(
        self,
        table: str,
        keys: Keys,
        gradients: Tensor,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Apply gradients that are on the device."""
        with self._reporting_size(table):
            super().push_from_device(table, keys, gradients, shows=shows, clicks=clicks)

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table into device memory."""
        rows = self._rows(table)
        rows.flush()
        if state.whole:
            rows.clear()
        else:
            rows.drop(np.concatenate([state.keys, state.removed]))
        LocalStore.load(self, table, state)
        with self._reporting_size(table):
            rows.place(state.keys)

    def _make_cache(self, spec: TableSpec, places: int) -> DeviceCache:
        del places  # as many as there are rows
        return DeviceRows(self._table(spec.name), self.device, self._stream)

    def _rows(self, table: str) -> DeviceRows:
        cache = self._cache(table)
        assert isinstance(cache, DeviceRows)
        return cache

    @contextmanager
    def _reporting_size(self, table: str) -> Iterator[None]:
        """Report that the device is out of memory with what the rows of a table take of it."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            size, rows = format_bytes(self._rows(table).bytes), len(self._table(table))
            raise InputError(
                f"{self.device} is out of memory: {rows:,} rows of table {table!r} have {size} of it."
                f" {str(error).splitlines()[0].partition('. ')[2]}",
                hint="use more workers, a smaller --batch, or --tables servers",
            ) from error


def _longer(rows: Tensor, count: int) -> Tensor:
    """Return rows with zeros after them; a table that is long enough is not copied."""
    if len(rows) >= count:
        return rows
    longer = rows.new_zeros((count, rows.shape[1]))
    longer[: len(rows)] = rows
    return longer
