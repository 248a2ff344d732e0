"""The sparse store of a rank in a plan whose tables are in the memory of some stages and on servers for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from berth.train.checkpoint.writer import ShardedStore
from berth.train.resident.store import ResidentStore
from berth.train.sparse import Floats, Keys, SparseStore, TableSpec
from berth.train.tables import State

_RESIDENT = ".resident"  # in names of files: both stores number theirs from 0


class MixedStore:
    """A `SparseStore` that passes each call on to the store of the table.

    Ranks of stages without tables on servers have no connection to them, unless their stage is the first: rank 0 saves
    and loads all tables.
    """

    is_shard = True

    def __init__(self, resident: ResidentStore, served: SparseStore | None, *, is_main: bool) -> None:
        self._resident, self._served, self._is_main = resident, served, is_main

    def part_of(self, table: str) -> SparseStore:
        """Return the store that has a table."""
        if table in self._resident.names:
            return self._resident
        assert self._served is not None, table
        return self._served

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create the tables, or join existing ones."""
        self._resident.open([spec for spec in tables if spec.name in self._resident.names])
        if self._served is not None:
            self._served.open([spec for spec in tables if spec.name not in self._resident.names])

    def prefetch(self, table: str, keys: Keys) -> None:
        """Announce keys that will be pulled soon."""
        self.part_of(table).prefetch(table, keys)

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return a row for each key, duplicates included; missing rows are created."""
        return self.part_of(table).pull(table, keys, out)

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows."""
        return self.part_of(table).peek(table, keys, out)

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: Floats,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Apply gradients to rows."""
        self.part_of(table).push(table, keys, gradients, shows=shows, clicks=clicks)

    def end_step(self, step: int) -> None:
        """End this rank's step; servers update their rows while ranks exchange gradients of theirs."""
        for store in self._stores:
            store.end_step(step)

    def end_day(self) -> None:
        """End the day of all tables."""
        for store in self._stores:
            store.end_day()

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Yield the parts of all tables, for a folder that servers or other ranks can't write to."""
        for store in self._stores:
            yield from store.save(changed_only=changed_only)

    def unwritable_by(self, folder: Path) -> str | None:
        """Return which server or rank can't write to a folder, and why; None if all can."""
        reasons = (writers.unwritable_by(folder) for writers in self._writers)
        return next((reason for reason in reasons if reason is not None), None)

    def start_save(
        self, folder: Path, suffix: str, *, changed_only: bool, streamed: bool
    ) -> dict[str, list[str]]:
        """Let all servers and owners write their shards; returns the files of each table."""
        served, resident = self._writers
        files = served.start_save(folder, suffix, changed_only=changed_only, streamed=streamed)
        own = f"{_RESIDENT}{suffix}"  # none of these rows is beyond memory
        return files | resident.start_save(folder, own, changed_only=changed_only, streamed=False)

    def finish_save(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file. For a background thread."""
        served, resident = self._writers
        return served.finish_save() | resident.finish_save()

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table."""
        self.part_of(table).load(table, state)

    def statistics(self) -> Mapping[str, Any]:
        """Return those of this rank's shards; on rank 0 also those of servers, with their tables as `served_tables`."""
        if not self._is_main or self._served is None:
            return self._resident.statistics()
        served = dict(self._served.statistics())
        return {"served_tables": served.pop("tables"), **served, **self._resident.statistics()}

    def close(self) -> None:
        """Wait for requests in flight, then release everything."""
        for store in self._stores:
            store.close()

    def evaluation(self) -> AbstractContextManager[None]:
        """Return a context for scoring, in which other ranks may peek at this one's rows."""
        return self._resident.evaluation()

    def attend_checkpoint(self) -> None:
        """Do this rank's part of saving or loading its shards."""
        self._resident.attend_checkpoint()

    @property
    def _stores(self) -> list[SparseStore]:
        """Return the stores of this rank; servers first, which work while ranks exchange rows."""
        return [self._resident] if self._served is None else [self._served, self._resident]

    @property
    def _writers(self) -> tuple[ShardedStore, ShardedStore]:
        """Return the stores whose servers and owners write files; on rank 0 there are both."""
        assert self._served is not None
        return cast("ShardedStore", self._served), self._resident
