"""Mode geo: each worker trains on local copies of rows and exchanges the changes every few steps.

A row is fetched when it is first used. The worker sends its change since the last exchange; the server adds 1/workers
of it, and the worker continues from the merged row. The optimiser state of a row is fetched and sent in the same way,
so that it is saved: the servers have the mean of the workers' states, each worker continues with its own. This takes
far fewer messages, and rows are a few steps old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.train.servers.auth import Secret
from berth.train.servers.client import RemoteStore
from berth.train.servers.transport import Address
from berth.train.sparse import DENSE_TABLE, DenseStore, Floats, Keys, TableSpec, WithoutPeers
from berth.train.tables import State, Table
from berth.train.tables import state as table_state
from berth.train.tables.dedup import unique_keys
from berth.train.tables.hashing import Keys as Signed
from berth.train.tables.index import EMPTY
from berth.train.tables.store import as_keys


@dataclass(slots=True)
class LocalCopy:
    """This worker's rows of a table, and what the changes of the next exchange are counted from."""

    mine: Table
    server_copy: Table  # weights as last received from the servers, optimiser state as last sent
    touched: list[Signed] = field(default_factory=list)  # since the last exchange


class GeoStore(WithoutPeers):
    """A `SparseStore` of local copies, merged on the servers every `every` steps."""

    def __init__(self, remote: RemoteStore, every: int = 10) -> None:
        if every < 1:
            raise InputError(f"the exchange interval must be at least 1 step, got {every}")
        self.remote = remote
        self.every = every
        self._local: dict[str, LocalCopy] = {}
        self._steps = 0

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create the tables on the servers and empty local copies."""
        for spec in tables:
            if spec.admission or spec.decay:
                raise InputError(f"table {spec.name!r}: mode geo supports neither admission nor decay")
        self.remote.open(tables)
        for spec in tables:
            mine, server_copy = (
                Table(spec.dim, optimiser=spec.optimiser, initialiser=spec.initialiser) for _ in range(2)
            )
            self._local[spec.name] = LocalCopy(mine, server_copy)

    def prefetch(self, table: str, keys: Keys) -> None:
        """Fetch rows that have no local copy."""
        self._fetch(table, unique_keys(as_keys(keys))[0])

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return local copies of rows; missing ones are fetched."""
        requested = as_keys(keys)
        self._fetch(table, unique_keys(requested)[0])
        return self._local_table(table).mine.pull(requested, out=out)

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return local copies, or rows of the servers where there is none; creates no rows."""
        requested, mine = as_keys(keys), self._local_table(table).mine
        rows = mine.peek(requested, out=out)
        absent = np.flatnonzero(mine.store.index.find(requested)[0] == EMPTY)
        if len(absent):
            rows[absent] = self.remote.peek(table, requested[absent].view(np.uint64))
        return rows

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: Floats,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Apply gradients to local copies."""
        requested, local = as_keys(keys), self._local_table(table)
        self._fetch(table, unique_keys(requested)[0])
        local.mine.push(requested, gradients, shows, clicks)
        local.touched.append(requested.copy())

    def push_dense(self, keys: Keys, gradients: Floats, settings: Floats) -> None:
        """Apply gradients to the local copy of dense weights, with the current settings of their optimiser."""
        self._local_table(DENSE_TABLE).mine.numbers = settings
        self.push(DENSE_TABLE, keys, gradients)

    def end_step(self, step: int) -> None:
        """End the step; exchange changes if it is due."""
        self._steps += 1
        if self._steps % self.every == 0:
            self.exchange()
        self.remote.end_step(step)

    @property
    def is_merged(self) -> bool:
        """Whether the servers have all changes of this worker."""
        return not any(local.touched for local in self._local.values())

    def exchange(self) -> None:
        """Send the changes since the last exchange and fetch the merged rows."""
        for name, local in self._local.items():
            if not local.touched:
                continue
            keys = unique_keys(np.concatenate(local.touched))[0]
            local.touched = []
            most = max(table_state.PART_BYTES // (4 * local.mine.width), 1)  # rows of a message
            for start in range(0, len(keys), most):
                self._merge(name, keys[start : start + most])

    def end_day(self) -> None:
        """Exchange, then end the day with all workers."""
        self.exchange()
        self.remote.end_day()

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Yield the merged rows after an exchange, with the mean of the workers' optimiser states."""
        with self.locked():
            yield from self.remote.save(changed_only=changed_only)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exchange, then keep the tables of the servers as they are until the end of the block."""
        self.exchange()
        with self.remote.locked():
            yield

    def whole_table(self, table: str) -> State:
        """Return the merged rows of one table, with the optimiser state of this worker."""
        state, local = self.remote.whole_table(table), self._local_table(table)
        records, _ = local.mine.store.records(state.keys)
        records[:, : local.mine.dim] = state.records[:, : local.mine.dim]
        return replace(state, records=records)

    def load_local(self, table: str, state: State) -> None:
        """Set the local copy of a table, with its optimiser state; the servers hold the same rows."""
        local = self._local_table(table)
        _set_records(local, state.keys, state.records)
        local.touched = []

    def unwritable_by(self, folder: Path) -> str | None:
        """Return which server can't write to a folder, and why; None if all can."""
        return self.remote.unwritable_by(folder)

    def start_save(
        self, folder: Path, suffix: str, *, changed_only: bool, streamed: bool
    ) -> dict[str, list[str]]:
        """Send the changes, then let all servers write their shards; returns the files of each table."""
        self.exchange()
        return self.remote.start_save(folder, suffix, changed_only=changed_only, streamed=streamed)

    def finish_save(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file."""
        return self.remote.finish_save()

    def load(self, table: str, state: State) -> None:
        """Load rows on the servers and drop the local copies."""
        self.remote.load(table, state)
        _drop_rows(self._local_table(table))

    def drop_copies(self) -> None:
        """Exchange, then drop the local copies of rows: they are fetched again, as other workers have left them."""
        self.exchange()
        for name, local in self._local.items():
            if name != DENSE_TABLE:
                _drop_rows(local)

    def statistics(self) -> Mapping[str, Any]:
        """Return the statistics of the servers."""
        return self.remote.statistics()

    def close(self) -> None:
        """Exchange a last time, then disconnect."""
        self.exchange()
        self.remote.close()

    def _local_table(self, table: str) -> LocalCopy:
        if table not in self._local:
            raise UnknownNameError("table", table, self._local)
        return self._local[table]

    def _merge(self, table: str, keys: Signed) -> None:
        local = self._local_table(table)
        records, dim = local.mine.store.records(keys)[0], local.mine.dim
        changes = records - local.server_copy.store.records(keys)[0]
        # The optimiser state of dense weights is saved by rank 0.
        has_state = local.mine.width > dim and table != DENSE_TABLE
        self.remote.merge(
            table, keys.view(np.uint64), changes[:, :dim], changes[:, dim:] if has_state else None
        )
        records[:, :dim] = self.remote.pull(table, keys.view(np.uint64))
        _set_records(local, keys, records)

    def _fetch(self, table: str, keys: Signed) -> None:
        """Fetch the rows that have no local copy."""
        local = self._local_table(table)
        keys = keys[local.mine.store.index.find(keys)[0] == EMPTY]
        most = max(table_state.PART_BYTES // (4 * local.mine.width), 1)
        for start in range(0, len(keys), most):
            part = keys[start : start + most]
            records = self.remote.pull_records(table, part.view(np.uint64), local.mine.width)
            _set_records(local, part, records)


def connect(addresses: Sequence[Address], secret: Secret, *, every: int = 10, **config: Any) -> DenseStore:
    """Return the store for the mode in which the servers run."""
    remote = RemoteStore(addresses, secret, **config)
    return GeoStore(remote, every) if remote.mode == "geo" else remote


def _drop_rows(local: LocalCopy) -> None:
    for rows in (local.mine, local.server_copy):
        rows.delete(rows.store.index.entries()[0])
    local.touched = []


def _set_records(local: LocalCopy, keys: Signed, records: Floats) -> None:
    """Set rows and optimiser state of both tables."""
    for table in (local.mine, local.server_copy):
        table.touch(keys)
        table.store.rows.write(table.store.locate(keys)[0], np.ascontiguousarray(records))
