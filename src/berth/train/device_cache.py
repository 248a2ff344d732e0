"""Hot rows of one table in device memory, above the table in host memory, above its file.

A cached row, with its optimiser state, is read and updated on the device. Rows without a place are copied there for
one step, each distinct one once, and the sums of their gradients back. The table keeps a record of every row, which is
out of date while the row is cached: shows and clicks are always counted there, weights and state are written back when
a row is evicted, and before a checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from berth.train.device_optimise import RowUpdate
from berth.train.device_places import CachePlaces
from berth.train.device_prefetch import Arrivals, Numbers, PrefetchedRows, divided
from berth.train.devices import SideStream, staging
from berth.train.tables import Table
from berth.train.tables.decay import shows_and_clicks
from berth.train.tables.dedup import DedupedKeys
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Index, Places
from berth.train.tables.initialise import Floats
from berth.train.tables.records import add_views, has_rows, read_records, write_records


@dataclass(slots=True)
class CacheCounts:
    """Cumulative counters, of the distinct keys of every batch; bytes are those of rows and gradients."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    prefetched: int = 0  # misses whose rows were copied during the step before
    to_device_bytes: int = 0
    to_host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Located:
    """Where the rows of a batch are: those with a place in the cache come first."""

    batch: DedupedKeys
    order: Numbers  # of the unique keys
    cached: int  # keys with a place
    places: Tensor  # of those
    where: Tensor  # for each key of the batch, its number in this order
    version: int  # of the cache's places

    @property
    def cached_keys(self) -> Keys:
        return self.batch.unique[self.order[: self.cached]]

    @property
    def other_keys(self) -> Keys:
        return self.batch.unique[self.order[self.cached :]]


class DeviceCache:
    """The rows of a table on a device; up to `capacity` of them stay there."""

    def __init__(self, table: Table, device: torch.device, capacity: int, stream: SideStream) -> None:
        self.table, self.device, self._stream = table, device, stream
        self.counts = CacheCounts()
        self._places = CachePlaces(capacity)
        self._columns = table.dim + len(table.optimiser.first_state(table.dim))
        self._weights = torch.zeros((capacity, table.dim), device=device)
        self._state = torch.zeros((capacity, self._columns - table.dim), device=device)
        self._update = RowUpdate(table.optimiser, table.dim, device)
        self._recent: _Located | None = None  # the last pull, usually the next push
        self._announced: list[Keys] = []  # keys of the next step
        self._prefetched: PrefetchedRows | None = None

    def announce(self, keys: Keys) -> None:
        """Take note of keys of the next step; their rows are copied after the pull of this one.

        Not with admission: a pull counts its keys, which decides what it returns.
        """
        if self.table.admission_filter is None:
            self._announced.append(keys)

    def pull(self, keys: Keys) -> Tensor:
        """Return the row of each key, [n, dim], on the device; missing rows are created."""
        batch = DedupedKeys.of(keys.copy())
        places = self._places.find(batch.unique)
        self._places.use(places)
        missing = np.flatnonzero(places == EMPTY)
        self.counts.hits += len(places) - len(missing)
        self.counts.misses += len(missing)
        arrived = self._arrivals(batch, missing).limited(self._places.capacity - (len(places) - len(missing)))
        self._recent, rows = self._place(batch, places, arrived)
        self._prefetch(batch.unique[missing])
        return rows

    def peek(self, keys: Keys) -> Tensor:
        """Return what `pull` would, without creating rows."""
        batch = DedupedKeys.of(keys.copy())
        places = self._places.find(batch.unique)
        missing = np.flatnonzero(places == EMPTY)
        rows = self._copy(batch.unique[:0], self.table.peek(batch.unique[missing]))
        arrived = Arrivals(missing[:0], *divided(rows, 0, self._columns, self.table.dim), missing)
        return self._place(batch, places, arrived)[1]

    def push(self, keys: Keys, gradients: Tensor, shows: Floats | None, clicks: Floats | None) -> None:
        """Apply gradients, [n, dim], of the device: rows with a place are updated there, the others in the table."""
        located, self._recent = self._recent, None
        if located is None or located.version != self._places.version or not located.batch.matches(keys):
            batch = DedupedKeys.of(keys.copy())
            located, _ = self._place(batch, self._places.find(batch.unique), None)
        batch, cached = located.batch, located.cached
        views = shows_and_clicks(self._counts_clicks, len(batch), shows, clicks)
        views = None if views is None else batch.summed(views)[located.order]
        sums = _summed(located, gradients)
        self._update(self._weights, self._state, located.places, sums[:cached])
        self._places.changed[self._places.find(located.cached_keys)] = True
        if views is not None and self.table.decay is not None:
            add_views(self.table, located.cached_keys, views[:cached])
        if cached < len(batch.unique):
            seen = () if views is None else (views[cached:, 0], views[cached:, 1])
            self.table.push(located.other_keys, self._to_host(sums[cached:]), *seen)
        if self._prefetched is not None:
            self._prefetched.invalidate(batch.unique)

    def flush(self) -> None:
        """Write all changed rows to the table; they stay cached."""
        keys, places = self._places.changed_rows()
        self._write_back(keys, self._on_device(places)[0])
        self._places.changed[places] = False

    def release(self, keys: Keys) -> None:
        """Write the rows of some keys to the table, and drop them."""
        places = self._places.find(keys)
        there = places != EMPTY
        there[there] = self._places.changed[places[there]]
        self._write_back(keys[there], self._on_device(places[there])[0])
        self.drop(keys)

    def drop(self, keys: Keys) -> None:
        """Drop the rows of some keys, and all prefetched ones, without writing them."""
        self._places.remove(keys)
        self._prefetched = None

    def clear(self) -> None:
        """Drop all rows without writing them."""
        self._places = CachePlaces(self._places.capacity)
        self._recent = self._prefetched = None

    def statistics(self) -> dict[str, Any]:
        """Return size and counters."""
        used = self.counts.hits + self.counts.misses
        return {
            "rows": len(self._places),
            "capacity": self._places.capacity,
            "bytes": 4 * self._columns * self._places.capacity,
            "hit_rate": self.counts.hits / used if used else 0.0,
            **asdict(self.counts),
        }

    @property
    def _counts_clicks(self) -> bool:
        admission = self.table.admission_filter
        return self.table.decay is not None or (admission is not None and admission.rule.kind == "score")

    def _arrivals(self, batch: DedupedKeys, missing: Numbers) -> Arrivals:
        """Return the rows without a place: those that were prefetched and did not change since, and a copy of the
        others."""
        early = Arrivals(missing[:0], self._state[:0], self._weights[:0], missing[:0])
        if self._prefetched is not None:
            found = self._prefetched.take(batch.unique[missing], self._stream)
            early = Arrivals(missing[found.kept], found.records, found.rows, missing[found.loose])
            self.table.touch(batch.unique[early.loose])  # creates rows, which the prefetch did not
        ready = np.concatenate([early.kept, early.loose])
        self.counts.prefetched += len(ready)
        fresh = np.setdiff1d(missing, ready, assume_unique=True)
        if not len(fresh):
            return early
        rows = self._from_table(batch, fresh)
        kept = self._worth_keeping(batch.unique[fresh])
        copied = self._copy(batch.unique[fresh[kept]], rows[~kept])
        parts = divided(copied, int(kept.sum()), self._columns, self.table.dim)
        return early.joined(Arrivals(fresh[kept], *parts, fresh[~kept]))

    def _from_table(self, batch: DedupedKeys, wanted: Numbers) -> Floats:
        """Return the weights of some unique keys; creates missing rows."""
        if self.table.admission_filter is None:
            return self.table.pull(batch.unique[wanted])
        is_wanted = np.zeros(len(batch.unique), np.bool_)
        is_wanted[wanted] = True
        positions = np.flatnonzero(is_wanted[batch.inverse])  # admission counts every occurrence
        rows = self.table.pull(batch.keys[positions])
        numbers, first = np.unique(batch.inverse[positions], return_index=True)
        assert len(numbers) == len(wanted)
        return rows[first]

    def _worth_keeping(self, keys: Keys) -> Any:
        """Return which keys without a place get one; only rows that exist do."""
        kept = self._places.worth_a_place(keys)
        kept[kept] = has_rows(self.table, keys[kept])
        return kept

    def _copy(self, kept: Keys, loose: Floats, *, ahead: bool = False) -> Tensor:
        """Copy whole records and rows of weights to the device, at once; `divided` separates them."""
        records = read_records(self.table, kept, self._columns)
        self._update.loads(records)
        host = staging((records.size + loose.size,), self.device)
        host[: records.size] = torch.from_numpy(records).view(-1)
        host[records.size :] = torch.from_numpy(loose).view(-1)
        self.counts.to_device_bytes += 4 * len(host)
        if not len(host):
            there = torch.empty(0, device=self.device)
        elif ahead:
            there = self._stream.copy(host)
        else:
            there = host.to(self.device, non_blocking=True)
        return there

    def _place(self, batch: DedupedKeys, places: Places, arrived: Arrivals | None) -> tuple[_Located, Tensor]:
        """Give a place to the rows that are kept; return where all rows of a batch are, and the row of each key."""
        new, evicted_keys, evicted = places[:0], batch.unique[:0], places[:0]
        if arrived is not None and len(arrived.kept):
            pinned = places[places != EMPTY]
            count, evicted_keys, evicted = self._places.evict_for(len(arrived.kept), pinned)
            self.counts.evictions += count
            new = self._places.put(batch.unique[arrived.kept])
            places[arrived.kept] = new
        cached = np.flatnonzero(places != EMPTY)
        others = np.flatnonzero(places == EMPTY) if arrived is None else arrived.loose
        order = np.concatenate([cached, others])
        number = np.empty(len(order), np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        where, here, there, old = self._on_device(number[batch.inverse], places[cached], new, evicted)
        self._write_back(evicted_keys, old)
        located = _Located(batch, order, len(cached), here, where, self._places.version)
        if arrived is None:
            return located, self._weights[:0]
        if len(new):
            self._weights.index_copy_(0, there, arrived.records[:, : self.table.dim])
            self._state.index_copy_(0, there, arrived.records[:, self.table.dim :])
        parts = [self._weights.index_select(0, here)] if len(cached) else []
        block = torch.cat([*parts, arrived.rows]) if parts and len(others) else (parts or [arrived.rows])[0]
        return located, block.index_select(0, where)

    def _prefetch(self, current: Keys) -> None:
        """Copy rows of the next step on the side stream, except cached ones, and those that this step will change."""
        if not self._announced:
            return
        keys = DedupedKeys.of(np.concatenate(self._announced)).unique
        self._announced.clear()
        touched = Index()
        touched.put(current, np.zeros(len(current), np.int32))
        keys = keys[(self._places.find(keys) == EMPTY) & (touched.find(keys)[0] == EMPTY)]
        kept = self._worth_keeping(keys)
        copied = self._copy(keys[kept], self.table.peek(keys[~kept]), ahead=True)
        self._prefetched = PrefetchedRows(
            np.concatenate([keys[kept], keys[~kept]]), int(kept.sum()), copied, self._columns, self.table.dim
        )

    def _on_device(self, *numbers: Places) -> tuple[Tensor, ...]:
        """Copy arrays of numbers to the device at once."""
        host = torch.from_numpy(np.concatenate(numbers))
        there = (
            host.to(self.device).long()
            if len(host)
            else torch.empty(0, dtype=torch.int64, device=self.device)
        )
        return tuple(there.split([len(part) for part in numbers]))

    def _write_back(self, keys: Keys, places: Tensor) -> None:
        """Write weights and optimiser state of cached rows to the table."""
        if len(keys):
            parts = [self._weights.index_select(0, places), self._state.index_select(0, places)]
            write_records(self.table, keys, self._to_host(torch.cat(parts, dim=1)))

    def _to_host(self, rows: Tensor) -> Floats:
        self.counts.to_host_bytes += 4 * rows.numel()
        copy: Floats = rows.cpu().numpy()
        return copy


def _summed(located: _Located, gradients: Tensor) -> Tensor:
    """Return the sums of gradients by key, in batch order where the device's `index_add_` keeps it."""
    count = len(located.batch.unique)
    sums = gradients.new_zeros((count, gradients.shape[1]))
    if count == len(located.batch):
        return sums.index_copy_(0, located.where, gradients)
    return sums.index_add_(0, located.where, gradients)
