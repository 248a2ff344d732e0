"""The sparse store of a run whose tables are in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.train.sparse import Floats, Keys, TableSpec, WithoutPeers
from berth.train.tables import State, Table
from berth.train.tables.dedup import DedupedKeys
from berth.train.tables.store import as_keys


class LocalStore(WithoutPeers):
    """A `SparseStore` in this process; beyond `memory_bytes` cold rows go to files in `folder`."""

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        folder: str | Path | None = None,
        scratch: bool = False,  # remove the folder with the store
    ) -> None:
        if memory_bytes is not None and folder is None:
            raise InputError("a memory budget needs a folder for the rows that do not fit")
        self._memory_bytes = memory_bytes
        self._folder = Path(folder) if folder is not None else None
        self._remove = finalize(self, _remove, self._folder) if scratch else None
        self._specs: dict[str, TableSpec] = {}
        self._tables: dict[str, Table] = {}
        self._recent_pulls: dict[str, DedupedKeys] = {}  # last pull of each table, usually the next push

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create the tables; they share a budget in proportion to their record size."""
        new = [spec for spec in tables if not self._is_open(spec)]
        if self._memory_bytes is not None and self._tables and new:
            raise InputError("the memory budget is already divided", hint="open all tables at once")
        for spec, share in zip(new, self._budgets(new), strict=True):
            self._specs[spec.name] = spec
            self._tables[spec.name] = self._make_table(spec, share)

    def prefetch(self, table: str, keys: Keys) -> None:
        """Do nothing: tables are not thread-safe."""

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return a row for each key, duplicates included; missing rows are created."""
        found, requested = self._table(table), as_keys(keys)
        if found.admission_filter is not None:  # counts pulls
            return found.pull(requested, out=out)
        batch = DedupedKeys.of(requested.copy())
        out = np.empty((len(requested), found.dim), np.float32) if out is None else out
        found.pull_deduped(batch, out)
        self._recent_pulls[table] = batch
        return out

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows."""
        return self._table(table).peek(keys, out=out)

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: Floats,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Apply gradients."""
        requested, batch = as_keys(keys), self._recent_pulls.pop(table, None)
        if batch is None or not batch.matches(requested):
            batch = DedupedKeys.of(requested)
        self._table(table).push_deduped(batch, gradients, shows, clicks)

    def end_step(self, step: int) -> None:
        """Do nothing: pushes are applied at once."""

    def end_day(self) -> None:
        """End the day of all tables."""
        for table in self._tables.values():
            table.end_day()

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Yield (table, part of its rows) by table; tables must not change meanwhile."""
        for name, table in self._tables.items():
            for part in table.save_parts(changed_only=changed_only):
                yield name, part

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table."""
        self._table(table).load(state)

    def statistics(self) -> Mapping[str, Any]:
        """Return rows, memory, hit rate, skew and counters by table."""
        return {"tables": {name: _table_statistics(table) for name, table in self._tables.items()}}

    def close(self) -> None:
        """Drop the tables and the files of cold rows."""
        self._tables.clear()
        self._recent_pulls.clear()
        if self._remove is not None:
            self._remove()

    def table(self, name: str) -> Table:
        """Return a table."""
        return self._table(name)

    def _is_open(self, spec: TableSpec) -> bool:
        other = self._specs.get(spec.name)
        if other is not None and other != spec:
            raise InputError(
                f"two different tables are named {spec.name!r}", hint="give each Embedding its own name"
            )
        return other is not None

    def _budgets(self, specs: Sequence[TableSpec]) -> list[int | None]:
        if self._memory_bytes is None:
            return [None] * len(specs)
        sizes = [spec.dim + len(spec.optimiser.first_state(spec.dim)) for spec in specs]
        return [self._memory_bytes * size // sum(sizes) for size in sizes]

    def _make_table(self, spec: TableSpec, memory_bytes: int | None) -> Table:
        folder = None
        if memory_bytes is not None and self._folder is not None:
            folder = self._folder / f"table-{len(self._tables)}"
            folder.mkdir(parents=True, exist_ok=True)
        return Table(
            spec.dim,
            optimiser=spec.optimiser,
            initialiser=spec.initialiser,
            admission=spec.admission,
            decay=spec.decay,
            memory_bytes=memory_bytes,
            folder=folder,
        )

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            raise UnknownNameError("table", name, self._tables)
        return self._tables[name]


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _table_statistics(table: Table) -> dict[str, Any]:
    statistics = table.statistics()
    facts = asdict(statistics)
    passed = table.counts.pulled + table.counts.pushed
    facts["moved_bytes"] = passed * (8 + 4 * table.dim)  # a key and a row
    facts |= {
        "hit_rate": statistics.hit_rate,
        "skew": statistics.skew,
        "bytes_per_row": statistics.bytes_per_row,
    }
    return facts
