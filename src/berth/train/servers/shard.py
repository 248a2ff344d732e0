"""The tables of one server, without anything of how requests get there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from berth.compile import entry
from berth.errors import InputError
from berth.train.servers.messages import PART_BYTES, cut
from berth.train.servers.specs import must_agree
from berth.train.sparse import Floats, TableSpec
from berth.train.tables import Initialiser, Optimiser, State, Table
from berth.train.tables.hashing import Keys
from berth.train.tables.index import Places
from berth.train.tables.rows import Rows


@entry
def _merge(data: Floats, width: int, dim: int, places: Places, deltas: Floats, share: np.float32) -> None:
    for number in range(len(places)):
        if places[number] < 0:
            continue
        base = np.int64(places[number]) * width
        for column in range(dim):
            data[base + column] += share * deltas[number * dim + column]


class Shard:
    """Part of every table; a budget of memory is shared by the tables as their records are wide."""

    def __init__(self, *, memory_bytes: int | None = None, folder: str | Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder
        self.specs: list[TableSpec] = []  # by number
        self.tables: list[Table] = []
        self.keys_pulled = 0
        self.keys_pushed = 0

    def open(self, specs: Sequence[TableSpec]) -> list[int]:
        """Make the tables that are not there; the numbers of all."""
        known = {spec.name: number for number, spec in enumerate(self.specs)}
        for spec in specs:
            if spec.name in known:
                must_agree(self.specs[known[spec.name]], spec)
        fresh = [spec for spec in specs if spec.name not in known]
        widths = [Table(spec.dim, optimiser=spec.optimiser, life=spec.life).width for spec in fresh]
        for spec, width in zip(fresh, widths, strict=True):
            budget = self.memory_bytes and self.memory_bytes * width // sum(widths)
            self._make(spec, budget)
        numbers = {spec.name: number for number, spec in enumerate(self.specs)}
        return [numbers[spec.name] for spec in specs]

    def pull(self, number: int, keys: Keys, out: Floats, *, create: bool = True) -> None:
        """Rows of distinct keys."""
        self.keys_pulled += len(keys)
        self.table(number).pull(keys, out=out, create=create)

    def peek(self, number: int, keys: Keys, out: Floats) -> None:
        """Rows of distinct keys, or what they would begin with."""
        self.keys_pulled += len(keys)
        self.table(number).peek(keys, out=out)

    def ask(self, number: int, keys: Keys, times: Places) -> None:
        """Keys were asked for so often: those that have waited long enough get a row."""
        table = self.table(number)
        absent = table.store.index.find(keys)[0] == -1
        often = np.clip(times[absent], 0, 1 << 20)
        table.touch(np.repeat(keys[absent], often))

    def push(self, number: int, keys: Keys, gradients: Floats, seen: Floats | None) -> None:
        """Rows learn from gradients; `seen` are shows and clicks, where they matter."""
        table, spec = self.table(number), self.specs[number]
        self.keys_pushed += len(keys)
        if (seen is not None) != spec.counts_clicks:
            raise InputError(f"table {spec.name!r} is pushed shows and clicks exactly if it has use for them")
        if seen is None:
            table.push(keys, gradients)
        else:
            table.push(keys, gradients, shows=seen[:, 0], clicks=seen[:, 1])

    def merge(self, number: int, keys: Keys, deltas: Floats, share: float) -> None:
        """Add a share of what a worker has learned on its own copies of rows."""
        table = self.table(number)
        if deltas.shape != (len(keys), table.dim):
            raise InputError(f"{len(keys)} rows of {table.dim} do not merge with {deltas.shape}")
        self.keys_pushed += len(keys)
        for part in table.store.pieces(len(keys)):
            table.touch(keys[part])
            places, rows = table.store.locate(keys[part])[0], table.store.rows
            _merge(rows.data, rows.width, table.dim, places, deltas[part].reshape(-1), np.float32(share))
            _mark(rows, places)

    def warm(self, number: int, keys: Keys) -> None:
        """Bring cold rows into memory; makes none."""
        store = self.table(number).store
        for part in store.pieces(len(keys)):
            store.locate(keys[part])

    def end_day(self) -> None:
        """Rows of all tables fade."""
        for table in self.tables:
            table.end_day()

    def parts(self, number: int, *, changed_only: bool) -> Iterator[State]:
        """A table in parts that fit a frame each; meanwhile it must be left alone."""
        for part in self.table(number).save_parts(changed_only=changed_only):
            yield from cut(part, PART_BYTES)

    def load(self, number: int, state: State) -> None:
        """Rows of a saved table."""
        self.table(number).load(state)

    def table(self, number: int) -> Table:
        """A table by its number."""
        if not 0 <= number < len(self.tables):
            raise InputError(f"there is no table number {number}")
        return self.tables[number]

    def statistics(self) -> dict[str, Any]:
        """What each table holds and was asked."""
        told = {}
        for spec, table in zip(self.specs, self.tables, strict=True):
            now = table.statistics()
            told[spec.name] = {
                "rows": now.rows,
                "hot_rows": now.hot_rows,
                "memory_bytes": now.memory_bytes,
                "cold_bytes": now.cold_bytes,
                "fetched": now.fetched,
                "evicted": now.evicted,
                "hit_rate": now.hit_rate,
                **asdict(now.counts),
            }
        return told

    def _make(self, spec: TableSpec, budget: int | None) -> None:
        self.tables.append(
            Table(
                spec.dim,
                optimiser=spec.optimiser,
                initialiser=spec.initialiser,
                admission=spec.admission,
                life=spec.life,
                memory_bytes=budget,
                folder=self.folder,
            )
        )
        self.specs.append(spec)


def load_kernels() -> None:
    """Kernels are loaded when they are first used, which takes most of a second: do it before anybody waits."""
    shard, keys = Shard(), np.array([1, 2, 2], np.int64)
    number = shard.open([TableSpec("first", 1, Optimiser(), Initialiser())])[0]
    for ask in (shard.peek, shard.pull):
        ask(number, keys, np.empty((3, 1), np.float32))
    shard.push(number, keys, np.zeros((3, 1), np.float32), None)


def _mark(rows: Rows, places: Places) -> None:
    rows.changed[places[places >= 0]] = 1
