"""Tables in this process: the sparse store of a training that runs alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.train.sparse import Floats, Keys, TableSpec
from berth.train.tables import State, Table
from berth.train.tables.merge import Merged
from berth.train.tables.store import as_keys


class LocalStore:
    """A `SparseStore` whose rows are here; beyond `memory_bytes` cold ones go to files in `folder`."""

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        folder: str | Path | None = None,
        scratch: bool = False,  # the folder is removed with the store
    ) -> None:
        if memory_bytes is not None and folder is None:
            raise InputError("a memory budget needs a folder for the rows that do not fit")
        self._memory_bytes = memory_bytes
        self._folder = Path(folder) if folder is not None else None
        self._remove = finalize(self, _remove, self._folder) if scratch else None
        self._specs: dict[str, TableSpec] = {}
        self._tables: dict[str, Table] = {}
        self._recent: dict[
            str, Merged
        ] = {}  # the keys of each table's last pull: mostly those of the next push

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Makes the tables; a budget is divided among them by the size of a record."""
        fresh = [spec for spec in tables if not self._known(spec)]
        if self._memory_bytes is not None and self._tables and fresh:
            raise InputError("the memory is divided already", hint="open all tables at once")
        for spec, share in zip(fresh, self._shares(fresh), strict=True):
            self._specs[spec.name] = spec
            self._tables[spec.name] = self._made(spec, share)

    def prefetch(self, table: str, keys: Keys) -> None:
        """Nothing to do: one thread works on a table, and it is busy with this batch."""

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """A row for each key, duplicates too; rows not seen before are made."""
        found, asked = self._table(table), as_keys(keys)
        if found.gate is not None:  # it counts how often a key is asked for
            return found.pull(asked, out=out)
        batch = Merged.of(asked.copy())
        out = np.empty((len(asked), found.dim), np.float32) if out is None else out
        found.pull_merged(batch, out)
        self._recent[table] = batch
        return out

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """What a pull would return; rows not seen before are not made."""
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
        """Rows learn at once."""
        asked, batch = as_keys(keys), self._recent.pop(table, None)
        if batch is None or not batch.is_of(asked):
            batch = Merged.of(asked)
        self._table(table).push_merged(batch, gradients, shows, clicks)

    def end_step(self, step: int) -> None:
        """Nothing to do: pushes took effect when they were made."""

    def end_day(self) -> None:
        """Rows fade, and dead ones leave."""
        for table in self._tables.values():
            table.end_day()

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """(table, part of its rows), table by table; nothing may be pulled or pushed meanwhile."""
        for name, table in self._tables.items():
            for part in table.save_parts(changed_only=changed_only):
                yield name, part

    def load(self, table: str, state: State) -> None:
        """Rows of a saved table."""
        self._table(table).load(state)

    def statistics(self) -> Mapping[str, Any]:
        """By table: rows, memory, hit rate, skew, and what was counted."""
        return {"tables": {name: _told(table) for name, table in self._tables.items()}}

    def close(self) -> None:
        """Files of cold rows go with their tables."""
        self._tables.clear()
        self._recent.clear()
        if self._remove is not None:
            self._remove()

    def table(self, name: str) -> Table:
        """One table, to look at."""
        return self._table(name)

    def _known(self, spec: TableSpec) -> bool:
        other = self._specs.get(spec.name)
        if other is not None and other != spec:
            raise InputError(
                f"two tables are called {spec.name!r}, and differ", hint="give each Embedding its own name"
            )
        return other is not None

    def _shares(self, specs: Sequence[TableSpec]) -> list[int | None]:
        if self._memory_bytes is None:
            return [None] * len(specs)
        sizes = [spec.dim + len(spec.optimiser.first_state(spec.dim)) for spec in specs]
        return [self._memory_bytes * size // sum(sizes) for size in sizes]

    def _made(self, spec: TableSpec, memory_bytes: int | None) -> Table:
        folder = None
        if memory_bytes is not None and self._folder is not None:
            folder = self._folder / f"table-{len(self._tables)}"
            folder.mkdir(parents=True, exist_ok=True)
        return Table(
            spec.dim,
            optimiser=spec.optimiser,
            initialiser=spec.initialiser,
            admission=spec.admission,
            life=spec.life,
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


def _told(table: Table) -> dict[str, Any]:
    told = table.statistics()
    facts = asdict(told)
    passed = table.counts.pulled + table.counts.pushed
    facts["moved_bytes"] = passed * (8 + 4 * table.dim)  # a key and a row
    facts |= {"hit_rate": told.hit_rate, "skew": told.skew, "bytes_per_row": told.bytes_per_row}
    return facts
