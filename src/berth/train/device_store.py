"""The store of a worker whose dense part is on an accelerator and whose tables are in its process.

Rows are pulled to the device and updated from there. `cache_bytes` of device memory hold the most used rows with their
optimiser state; rows of the next step are copied while this one trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from berth.errors import InputError
from berth.train.device_cache import DeviceCache
from berth.train.devices import CPU, SideStream, on_host, reporting_memory
from berth.train.local import LocalStore
from berth.train.sparse import Floats, Keys, SparseStore, TableSpec
from berth.train.tables import State
from berth.train.tables.store import as_keys
from berth.units import format_bytes


class DeviceStore(Protocol):
    """A store that returns rows, and takes gradients, on its device."""

    device: torch.device

    def pull_to_device(self, table: str, keys: Keys, *, create: bool = True) -> Tensor:
        """Return a row for each key on the device; missing rows are created, unless this is for inference."""
        ...

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
        ...


def store_on_device(store: SparseStore, device: torch.device) -> DeviceStore | None:
    """Return the store if its rows are on a device of this kind, which is not the CPU."""
    own: torch.device = getattr(store, "device", CPU)
    return cast("DeviceStore", store) if own.type != "cpu" and own.type == device.type else None


class DeviceCachedStore(LocalStore):
    """A `LocalStore` with rows of each table in the memory of a device."""

    def __init__(self, device: torch.device, cache_bytes: int = 0, **below: Any) -> None:
        super().__init__(**below)
        self.device = device
        self._cache_bytes = cache_bytes
        self._stream = SideStream(device)
        self._caches: dict[str, DeviceCache] = {}

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create the tables; they share memory of host and device in proportion to their record size."""
        super().open(tables)
        new = [spec for spec in tables if spec.name not in self._caches]
        new = list({spec.name: spec for spec in new}.values())
        if self._cache_bytes and self._caches and new:
            raise InputError("the device cache is already divided", hint="open all tables at once")
        sizes = [4 * (spec.dim + len(spec.optimiser.first_state(spec.dim))) for spec in new]
        places = self._cache_bytes // max(sum(sizes), 1)
        if self._cache_bytes and new and not places:
            raise InputError(
                f"a device cache of {format_bytes(self._cache_bytes)} holds no row",
                hint=f"a row of each table takes {format_bytes(sum(sizes))}: increase --device-cache",
            )
        with reporting_memory(self.device):
            for spec in new:
                self._caches[spec.name] = self._make_cache(spec, places)

    def prefetch(self, table: str, keys: Keys) -> None:
        """Announce keys of the next step."""
        self._cache(table).announce(as_keys(keys).copy())

    def pull_to_device(self, table: str, keys: Keys, *, create: bool = True) -> Tensor:
        """Return a row for each key on the device; missing rows are created, unless this is for inference."""
        cache = self._cache(table)
        return cache.pull(as_keys(keys)) if create else cache.peek(as_keys(keys))

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
        self._cache(table).push(as_keys(keys), gradients, shows, clicks)

    def flush(self, table: str) -> None:
        """Write changed rows of a table to host memory; they stay on the device."""
        self._cache(table).flush()

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """As `LocalStore.pull`; the rows leave the device."""
        self._cache(table).release(as_keys(keys))
        return super().pull(table, keys, out)

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows; cached ones stay on the device."""
        rows: Floats = on_host(self._cache(table).peek(as_keys(keys))).numpy()
        if out is None:
            return rows
        out[:] = rows
        return out

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: Floats,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """As `LocalStore.push`; the rows leave the device."""
        self._cache(table).release(as_keys(keys))
        super().push(table, keys, gradients, shows=shows, clicks=clicks)

    def end_day(self) -> None:
        """End the day of all tables; expired rows leave the device."""
        for name, cache in self._caches.items():
            cache.drop(self._table(name).end_day())

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """As `LocalStore.save`, after all changed rows were copied from the device; they stay there."""
        for name in self._caches:
            self.flush(name)
        yield from super().save(changed_only=changed_only)

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table; all of its rows leave the device."""
        self._cache(table).flush()
        self._cache(table).clear()
        super().load(table, state)

    def statistics(self) -> Mapping[str, Any]:
        """Return those of the tables, and of their caches."""
        caches = {name: cache.statistics() for name, cache in self._caches.items()}
        return {**super().statistics(), "device_cache": caches}

    def close(self) -> None:
        """Drop the tables."""
        self._caches.clear()
        super().close()

    def _make_cache(self, spec: TableSpec, places: int) -> DeviceCache:
        return DeviceCache(self._table(spec.name), self.device, places, self._stream)

    def _cache(self, table: str) -> DeviceCache:
        self._table(table)  # raises for an unknown name
        return self._caches[table]


def local_store(device: torch.device, cache_bytes: int = 0, **below: Any) -> LocalStore:
    """Return the store of tables in this process, with rows on the device if it is an accelerator."""
    if device.type != "cpu":
        return DeviceCachedStore(device, cache_bytes, **below)
    if cache_bytes:
        raise InputError("--device-cache is memory of an accelerator", hint="add --device cuda, or drop it")
    return LocalStore(**below)
