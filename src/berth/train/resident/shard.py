"""This rank's shards of the tables: rows by unique keys of several ranks, in host or device memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from berth.train.device_rows import DeviceTables
from berth.train.local import LocalStore
from berth.train.sparse import Floats, TableSpec
from berth.train.sparse import Keys as StoreKeys
from berth.train.tables import State
from berth.train.tables.hashing import Keys


class ResidentShard:
    """Shards of tables; rows and gradients are tensors on the device of the rank."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.specs: list[TableSpec] = []
        self._there = DeviceTables(device) if device.type != "cpu" else None
        self._store: LocalStore = self._there or LocalStore()

    def open(self, specs: Sequence[TableSpec]) -> None:
        """Create the tables."""
        self._store.open(specs)
        known = {spec.name for spec in self.specs}
        self.specs += {spec.name: spec for spec in specs if spec.name not in known}.values()

    def pull(self, table: str, keys: Keys, times: Keys | None = None) -> Tensor:
        """Return the row of each key; missing rows are created. `times`: how often each key occurs, for admission."""
        if times is None:
            return self._pull(table, keys)
        rows = self._pull(table, np.repeat(keys, times))
        first = torch.from_numpy(np.cumsum(times) - times)
        return rows.index_select(0, first.to(self.device))

    def peek(self, table: str, keys: Keys) -> Tensor:
        """Return what `pull` would, without creating rows."""
        if self._there is not None:
            return self._there.pull_to_device(table, _unsigned(keys), create=False)
        return torch.from_numpy(self._store.peek(table, _unsigned(keys)))

    def push(self, table: str, keys: Keys, gradients: Tensor, views: Floats | None) -> None:
        """Apply gradients, summed by key in the order given; `views` are shows and clicks."""
        if not len(keys):
            return
        shows, clicks = (None, None) if views is None else (views[:, 0], views[:, 1])
        if self._there is not None:
            self._there.push_from_device(table, _unsigned(keys), gradients, shows=shows, clicks=clicks)
        else:
            self._store.push(table, _unsigned(keys), gradients.numpy(), shows=shows, clicks=clicks)

    def touch(self, table: str, keys: Keys) -> None:
        """Create missing rows."""
        if len(keys):
            self._store.table(table).touch(keys)

    def end_day(self) -> None:
        """End the day of all tables."""
        self._store.end_day()

    def parts(self, number: int, *, changed_only: bool) -> Iterator[State]:
        """Yield a table in parts; it must not change meanwhile."""
        name = self.specs[number].name
        if self._there is not None:
            self._there.flush(name)
        yield from self._store.table(name).save_parts(changed_only=changed_only)

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table."""
        self._store.load(table, state)

    def statistics(self) -> Mapping[str, Any]:
        """Return those of each table."""
        return self._store.statistics()

    def close(self) -> None:
        """Drop the tables."""
        self._store.close()

    def _pull(self, table: str, keys: Keys) -> Tensor:
        if self._there is not None:
            return self._there.pull_to_device(table, _unsigned(keys))
        return torch.from_numpy(self._store.pull(table, _unsigned(keys)))


def _unsigned(keys: Keys) -> StoreKeys:
    return keys.view(np.uint64)
