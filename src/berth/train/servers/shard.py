"""The tables of one server and the steps of its workers, independent of networking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from berth.errors import InputError, RefusedError, UnknownNameError
from berth.native.kernels import entry
from berth.train.servers.protocol import MODES, Mode
from berth.train.sparse import Floats, TableSpec
from berth.train.tables import Initialiser, Optimiser, State, Table
from berth.train.tables.hashing import Keys
from berth.train.tables.index import Places
from berth.train.tables.state import PART_BYTES, split_state

if TYPE_CHECKING:
    from berth.train.shards.shard_save import ShardSave


@entry
def _merge(
    data: Floats, width: int, first: int, count: int, places: Places, deltas: Floats, share: np.float32
) -> None:
    """Add to `count` columns of each record, from column `first` on."""
    for number in range(len(places)):
        if places[number] < 0:
            continue
        base = np.int64(places[number]) * width + first
        for column in range(count):
            data[base + column] += share * deltas[number * count + column]


class Shard:
    """A shard of every table; tables share a memory budget in proportion to their record size."""

    def __init__(self, *, memory_bytes: int | None = None, folder: str | Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder
        self.specs: list[TableSpec] = []  # by table id
        self.tables: list[Table] = []
        self.save: ShardSave | None = None  # the last one, running or not
        self.keys_pulled = 0
        self.keys_pushed = 0

    def open(self, specs: Sequence[TableSpec]) -> list[int]:
        """Create missing tables; returns the ids of all."""
        known = {spec.name: number for number, spec in enumerate(self.specs)}
        for spec in specs:
            if spec.name in known:
                check_same_table(self.specs[known[spec.name]], spec)
        new = [spec for spec in specs if spec.name not in known]
        widths = [
            0 if spec.is_dense else Table(spec.dim, optimiser=spec.optimiser, decay=spec.decay).width
            for spec in new
        ]
        for spec, width in zip(new, widths, strict=True):
            budget = self.memory_bytes and self.memory_bytes * width // sum(widths) if width else None
            self._add_table(spec, budget)
        numbers = {spec.name: number for number, spec in enumerate(self.specs)}
        return [numbers[spec.name] for spec in specs]

    def pull(self, number: int, keys: Keys, out: Floats, *, create: bool = True) -> None:
        """Write the rows of unique keys to `out`."""
        self.keys_pulled += len(keys)
        self.table(number).pull(keys, out=out, create=create)

    def peek(self, number: int, keys: Keys, out: Floats) -> None:
        """Write the rows of unique keys, or their initial values, to `out`."""
        self.keys_pulled += len(keys)
        self.table(number).peek(keys, out=out)

    def records(self, number: int, keys: Keys, out: Floats) -> None:
        """Write rows with their optimiser state to `out`; missing ones are created."""
        table = self.table(number)
        self.keys_pulled += len(keys)
        table.counts.pulled += len(keys)
        for part in table.store.pieces(len(keys)):
            table.touch(keys[part])
            out[part] = table.store.records(keys[part])[0]

    def count_requests(self, number: int, keys: Keys, times: Places) -> None:
        """Count pulls of keys without a row; those that reach the admission threshold get one."""
        table = self.table(number)
        absent = table.store.index.find(keys)[0] == -1
        repeats = np.clip(times[absent], 0, 1 << 20)
        table.touch(np.repeat(keys[absent], repeats))

    def push(self, number: int, keys: Keys, gradients: Floats, views: Floats | None) -> None:
        """Apply gradients; `views` are shows and clicks for tables that use them, settings for dense weights."""
        table, spec = self.table(number), self.specs[number]
        self.keys_pushed += len(keys)
        if spec.is_dense:
            assert views is not None
            table.numbers = views.copy()
            table.push(keys, gradients)
            return
        if (views is not None) != spec.counts_clicks:
            raise InputError(
                f"table {spec.name!r}: shows and clicks must be pushed if, and only if, the table uses them"
            )
        if views is None:
            table.push(keys, gradients)
        else:
            table.push(keys, gradients, shows=views[:, 0], clicks=views[:, 1])

    def merge(self, number: int, keys: Keys, deltas: Floats, state: Floats | None, share: float) -> None:
        """Add a share of a worker's changes to rows, and to their optimiser state if it is given (mode geo)."""
        table = self.table(number)
        if deltas.shape != (len(keys), table.dim):
            raise InputError(
                f"{len(keys)} rows of {table.dim} weights can't be merged with shape {deltas.shape}"
            )
        changes = [(0, deltas)] if state is None else [(0, deltas), (table.dim, state)]
        self.keys_pushed += len(keys)
        for part in table.store.pieces(len(keys)):
            table.touch(keys[part])
            places, rows = table.store.locate(keys[part])[0], table.store.rows
            for first, change in changes:
                flat = np.ascontiguousarray(change[part]).reshape(-1)
                _merge(rows.data, rows.width, first, change.shape[1], places, flat, np.float32(share))
            rows.changed[places[places >= 0]] = 1

    def prefetch(self, number: int, keys: Keys) -> None:
        """Load cold rows into memory; creates none."""
        store = self.table(number).store
        for part in store.pieces(len(keys)):
            store.locate(keys[part])

    def end_day(self) -> None:
        """End the day of all tables."""
        for table in self.tables:
            table.end_day()

    def parts(self, number: int, *, changed_only: bool) -> Iterator[State]:
        """Yield a table in parts that fit a frame; it must not change meanwhile."""
        for part in self.table(number).save_parts(changed_only=changed_only):
            yield from split_state(part, PART_BYTES)

    def load(self, number: int, state: State) -> None:
        """Load rows of a saved table."""
        self.table(number).load(state)

    def table(self, number: int) -> Table:
        """Return a table by id."""
        if not 0 <= number < len(self.tables):
            raise InputError(f"unknown table id {number}")
        return self.tables[number]

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of each table."""
        statistics = {}
        for spec, table in zip(self.specs, self.tables, strict=True):
            current = table.statistics()
            statistics[spec.name] = {
                "rows": current.rows,
                "hot_rows": current.hot_rows,
                "memory_bytes": current.memory_bytes,
                "cold_bytes": current.cold_bytes,
                "fetched": current.fetched,
                "evicted": current.evicted,
                "hit_rate": current.hit_rate,
                **asdict(current.counts),
            }
        return statistics

    def _add_table(self, spec: TableSpec, budget: int | None) -> None:
        self.tables.append(
            Table(
                spec.dim,
                optimiser=spec.optimiser,
                initialiser=spec.initialiser,
                admission=spec.admission,
                decay=spec.decay,
                memory_bytes=budget,
                folder=self.folder,
            )
        )
        self.specs.append(spec)


class StepTracker:
    """Tracks how many steps and days each worker has ended, and so which request may run.

    | mode | pushes take effect | a worker's next pull waits until |
    |---|---|---|
    | sync | when all workers have ended the step, in rank order | all workers have ended the step |
    | half-async | on arrival | it can't get more than `staleness` steps ahead of the slowest |
    | async | on arrival | never |
    | geo | every few steps, as differences of rows | never |
    """

    def __init__(self, mode: Mode, workers: int, staleness: int = 0) -> None:
        if mode not in MODES:
            raise UnknownNameError("mode", mode, MODES)
        if workers < 1 or staleness < 0:
            raise InputError(
                f"need at least 1 worker and a staleness of at least 0, got {workers} and {staleness}"
            )
        self.mode: Mode = mode
        self.workers = workers
        self.staleness = staleness if mode == "half-async" else 0
        self.ended = [0] * workers  # steps of each rank
        self.days = [0] * workers
        self.retired = [False] * workers  # take no more steps: no other rank waits for them

    @property
    def defers(self) -> bool:
        """Whether pushes wait for the end of the step; never with one worker."""
        return self.mode == "sync" and self.workers > 1

    def end_step(self, rank: int) -> bool:
        """Count a step of a worker; returns whether it was the last to end that step."""
        slowest = min(self.ended)
        self.retired[rank] = False
        self.ended[rank] += 1
        return min(self.ended) > slowest

    def missing_for_pull(self, rank: int) -> list[int]:
        """Return the ranks that a worker's pull waits for."""
        if self.mode not in ("sync", "half-async"):
            return []
        need = self.ended[rank] - max(self.staleness - 1, 0)  # the step after the pull counts, too
        return [
            other for other in range(self.workers) if self.ended[other] < need and not self.retired[other]
        ]

    def end_day(self, rank: int) -> None:
        """Count a day of a worker."""
        self.days[rank] += 1

    def missing_for_day(self, rank: int) -> list[int]:
        """Return the ranks that a worker at the end of its day waits for; only in mode sync, days end together."""
        if self.mode != "sync":
            return []
        return [other for other in range(self.workers) if self.days[other] < self.days[rank]]


def check_same_table(existing: TableSpec, requested: TableSpec) -> None:
    """Raise unless two descriptions of one name are equal."""
    if existing != requested:
        old, new = existing.to_json(), requested.to_json()
        different = ", ".join(name for name in old if old[name] != new[name])
        raise RefusedError(f"table {existing.name!r} already exists with a different {different}")


def load_kernels() -> None:
    """Load the compiled kernels, which takes most of a second, before the first request."""
    shard, keys = Shard(), np.array([1, 2, 2], np.int64)
    number = shard.open([TableSpec("first", 1, Optimiser(), Initialiser())])[0]
    for read in (shard.peek, shard.pull):
        read(number, keys, np.empty((3, 1), np.float32))
    shard.push(number, keys, np.zeros((3, 1), np.float32), None)
