"""The sparse store of a worker whose tables are on servers.

The unique keys of a batch go to all servers at once, one message each for all tables; responses are scattered into the
output as they arrive. Gradients are summed by key on the worker and sent without waiting for a response.

Servers write checkpoints themselves, all their shards at once, to a shared folder. The results come by connections of
their own, for a background thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.train.servers.auth import CONTROL_RANK, Secret
from berth.train.servers.connection import ClientOptions
from berth.train.servers.in_flight import Pulls, Pushes, RemoteTable
from berth.train.servers.protocol import (
    Array,
    Codec,
    Flag,
    Kind,
    checked_codec,
    pack_json,
    read_json,
    state_from_arrays,
    state_to_arrays,
)
from berth.train.servers.server_pool import ServerPool, check_message_size
from berth.train.servers.transport import Address
from berth.train.shards.files import probe_file, raise_first, shard_files, wait_until_saved
from berth.train.shards.routing import make_route
from berth.train.sparse import DENSE_TABLE, Floats, Keys, TableSpec, WithoutPeers
from berth.train.tables import State, join, shard_skew, split
from berth.train.tables.decay import shows_and_clicks
from berth.train.tables.state import PART_BYTES, split_state
from berth.train.tables.statistics import table_totals
from berth.train.tables.store import as_keys


class RemoteStore(WithoutPeers):
    """A `SparseStore` whose rows are on servers."""

    def __init__(
        self,
        addresses: Sequence[Address],
        secret: Secret,
        *,
        rank: int = 0,
        workers: int = 1,
        generation: int = 1,
        codec: Codec = "fp32",
        options: ClientOptions | None = None,
    ) -> None:
        if not addresses:
            raise InputError("RemoteStore needs at least one server address")
        options = options or ClientOptions()
        connect = partial(ServerPool, addresses, secret, workers=workers, generation=generation)
        self.pool = connect(options, rank=rank)
        self.mode = self.pool.mode
        self._control: ServerPool | None = None  # for the results of saves
        self._connect_control = partial(connect, replace(options, shared=False), rank=CONTROL_RANK)
        self._tables: dict[str, RemoteTable] = {}
        self._codec: Codec = checked_codec(codec)
        self._pulls = Pulls(self.pool, self._tables)
        self._pushes = Pushes(self.pool)
        self._is_locked = False

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create the tables on all servers, or join existing ones."""
        specs = pack_json([spec.to_json() for spec in tables])
        request_ids = [self.pool.send(shard, Kind.OPEN, [specs]) for shard in range(len(self.pool))]
        table_ids = [[0] * len(self.pool) for _ in tables]
        for shard, frame in self.pool.responses(request_ids):
            for ids, table_id in zip(table_ids, frame.arrays()[0].tolist(), strict=True):
                ids[shard] = table_id
        for spec, ids in zip(tables, table_ids, strict=True):
            codec: Codec = "fp32" if spec.is_dense else self._codec
            self._tables[spec.name] = RemoteTable(spec, ids, codec=codec)

    def prefetch(self, table: str, keys: Keys) -> None:
        """Announce keys that will be pulled: servers load cold rows, and send rows ahead where the mode allows it."""
        self._pulls.announce(self._table(table), as_keys(keys))

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return a row for each key, duplicates included."""
        remote, requested = self._table(table), as_keys(keys)
        out = _checked_out(out, (len(requested), remote.spec.dim))
        self._pushes.flush()
        self._pulls.pull(remote, requested, out)
        return out

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows."""
        remote, requested = self._table(table), as_keys(keys)
        out = _checked_out(out, (len(requested), remote.spec.dim))
        self._pushes.flush()
        self._pulls.peek(remote, requested, out)
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
        """Send the summed gradients of each key; returns before they arrive."""
        remote, requested = self._table(table), as_keys(keys)
        shape = (len(requested), remote.spec.dim)
        if gradients.shape != shape:
            raise InputError(f"{len(requested)} keys need gradients of shape {shape}, not {gradients.shape}")
        contiguous = np.ascontiguousarray(gradients, np.float32)
        views = shows_and_clicks(remote.spec.counts_clicks, len(requested), shows, clicks)
        route = remote.route_of(requested, len(self.pool))
        self._pushes.push(remote, route, contiguous, views)
        self._pulls.pushed(remote, route)

    def push_dense(self, keys: Keys, gradients: Floats, settings: Floats) -> None:
        """Send gradients of dense weights, each key once, with the current settings of their optimiser."""
        remote, requested = self._table(DENSE_TABLE), as_keys(keys)
        route = remote.route_of(requested, len(self.pool))
        self._pushes.push(remote, route, np.ascontiguousarray(gradients, np.float32), settings)
        self._pulls.pushed(remote, route)

    def pull_records(self, table: str, keys: Keys, width: int) -> Floats:
        """Return rows with their optimiser state, exact whatever the encoding; missing ones are created."""
        remote, route = self._table(table), make_route(as_keys(keys), len(self.pool))
        out = np.empty((len(route.keys), width), np.float32)
        check_message_size(4 * out.size + 64)
        self._pushes.flush()
        request_ids = []
        for shard in range(len(self.pool)):
            parts: list[Array] = [np.array([[remote.table_ids[shard], 0]], np.int32), route.keys_of(shard)]
            request_ids.append(self.pool.send(shard, Kind.PULL, parts, flags=Flag.RECORDS))
        for shard, frame in self.pool.responses(request_ids):
            route.spread(shard, frame.arrays()[0], out)
        return out

    def merge(self, table: str, keys: Keys, deltas: Floats, state: Floats | None = None) -> None:
        """Send the changes of local row copies and of their optimiser state, each key once (mode geo)."""
        remote, route = self._table(table), make_route(as_keys(keys), len(self.pool))
        self._pushes.merge(remote, route, deltas, state)
        self._pulls.version += 1

    def end_step(self, step: int) -> None:
        """End this worker's step on all servers."""
        self._pulls.create_deferred()
        self.pool.step = step
        self._pushes.end_step(more=self._pulls.has_announced)
        self.pool.step = step + 1
        self._pulls.version += 1
        self._pulls.prefetch_announced()

    def end_day(self) -> None:
        """End the day; returns when all workers have, and counts are decayed."""
        self._pulls.create_deferred()
        self._pushes.flush()
        self.pool.call_all(Kind.END_DAY)
        self._pulls.version += 1

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Yield all tables of rows in parts, in loading order; other workers wait meanwhile."""
        with self.locked():
            for name, remote in self._tables.items():
                if remote.spec.is_dense:
                    continue  # in the dense part of a checkpoint
                for state in self._parts(remote, Flag.CHANGED_ONLY if changed_only else Flag.NONE):
                    yield name, state

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the tables as they are: other workers wait until the end of the block."""
        if self._is_locked:
            yield
            return
        self._pulls.create_deferred()
        self._pushes.flush()
        self.pool.call_all(Kind.LOCK)
        self._is_locked = True
        try:
            yield
        finally:
            self._is_locked = False
            self.pool.call_all(Kind.UNLOCK)

    def whole_table(self, table: str) -> State:
        """Return one table with its optimiser state; it must be small."""
        with self.locked():
            return join(list(self._parts(self._table(table), Flag.NONE)))

    def unwritable_by(self, folder: Path) -> str | None:
        """Return which server can't write to a folder, and why; None if all can."""
        with probe_file(folder) as request:
            numbers = [
                self.pool.send(shard, Kind.PROBE, [pack_json(request)]) for shard in range(len(self.pool))
            ]
            reasons = {shard: read_json(frame.arrays()[0]) for shard, frame in self.pool.responses(numbers)}
        refused = (
            f"{self.pool[shard].name} can't write there: {why}"
            for shard, why in sorted(reasons.items())
            if why
        )
        return next(refused, None)

    def start_save(
        self, folder: Path, suffix: str, *, changed_only: bool, streamed: bool
    ) -> dict[str, list[str]]:
        """Let all servers write their shards; returns the files of each table. Other workers wait meanwhile."""
        tables = {
            name: remote.table_ids
            for name, remote in self._tables.items()
            if not remote.spec.is_dense  # those are in the dense part of a checkpoint
        }
        files = shard_files(tables, len(self.pool), suffix)
        with self.locked():
            numbers = []
            for shard in range(len(self.pool)):
                request = {
                    "folder": str(folder.resolve()),
                    "files": {str(tables[table][shard]): names[shard] for table, names in files.items()},
                    "changed_only": changed_only,
                    "streamed": streamed,
                }
                numbers.append(self.pool.send(shard, Kind.SAVE, [pack_json(request)]))
            raise_first([read_json(frame.arrays()[0]) for _, frame in self.pool.responses(numbers)])
            if streamed:
                self.finish_save()  # before the tables are unlocked
        return files

    def finish_save(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file. For a background thread.

        Raises `OSError` if one failed, and `NotFiniteError` if rows are not finite.
        """
        pool = self._control = self._control or self._connect_control()
        return wait_until_saved(
            lambda: (read_json(frame.arrays()[0]) for _, frame in pool.send_all(Kind.SAVED))
        )

    def load(self, table: str, state: State) -> None:
        """Send each server its rows of a saved table."""
        remote = self._table(table)
        self._pulls.create_deferred()
        for piece in split_state(state, PART_BYTES):
            request_ids = []
            for shard, part in enumerate(split(piece, len(self.pool))):
                head = np.array([remote.table_ids[shard]], np.int32)
                request_ids.append(self.pool.send(shard, Kind.LOAD, [head, *state_to_arrays(part)]))
            for _ in self.pool.responses(request_ids):
                pass
        self._pulls.version += 1

    def statistics(self) -> Mapping[str, Any]:
        """Return rows, traffic and skew by table and by server."""
        self._pushes.flush()
        shards: list[dict[str, Any]] = [{} for _ in self.pool]
        for shard, frame in self.pool.send_all(Kind.STATISTICS):
            shards[shard] = read_json(frame.arrays()[0])
        load = [facts["keys_pulled"] + facts["keys_pushed"] for facts in shards]
        received, sent = zip(*(connection.bytes_moved for connection in self.pool), strict=True)
        return {
            "tables": self._by_table(shards, sum(received) + sum(sent)),
            "servers": shards,
            "skew": shard_skew(load),
            "server_skew": _server_skew(shards),
            "encrypted": any(connection.is_encrypted for connection in self.pool),
            "bytes_received": sum(received),
            "bytes_sent": sum(sent),
            "retries": sum(connection.retries for connection in self.pool),
            "shared_memory": all(connection.channel.in_memory for connection in self.pool),
        }

    def _by_table(self, shards: list[dict[str, Any]], moved: int) -> dict[str, Any]:
        """Return totals by table; traffic is attributed by the number of weights pulled and pushed."""
        totals = {
            name: table_totals([facts["tables"][name] for facts in shards])
            for name, remote in self._tables.items()
            if not remote.spec.is_dense
        }
        weights = {
            name: (facts["counts"]["pulled"] + facts["counts"]["pushed"]) * self._tables[name].spec.dim
            for name, facts in totals.items()
        }
        total = sum(weights.values()) or 1
        return {
            name: {**facts, "moved_bytes": moved * weights[name] // total} for name, facts in totals.items()
        }

    def close(self) -> None:
        """Wait until all pushes are acknowledged, then disconnect."""
        try:
            self._pushes.flush()
            self.pool.leave()
        finally:
            if self._control is not None:
                self._control.close()
                self._control = None
            self.pool.close()

    def _table(self, table: str) -> RemoteTable:
        if table not in self._tables:
            raise UnknownNameError("table", table, self._tables)
        return self._tables[table]

    def _parts(self, remote: RemoteTable, flags: int) -> Iterator[State]:
        """Yield first the part that clears the table, then rows by server, last the keys pending admission."""
        heads: list[State] = []
        lasts: list[State] = []
        for shard in range(len(self.pool)):
            number = np.array([remote.table_ids[shard]], np.int32)
            first = self._state(shard, self.pool.send(shard, Kind.PART, [number], flags=flags))
            heads += [first] if first else []
        yield join(heads)
        for shard in range(len(self.pool)):
            held = self._state(shard, self.pool.send(shard, Kind.PART))
            while held is not None:
                part = self._state(shard, self.pool.send(shard, Kind.PART))
                if part is None:
                    lasts.append(held)
                else:
                    yield held
                held = part
        yield join(lasts)

    def _state(self, shard: int, number: int) -> State | None:
        """Return the next part of a table, or None."""
        frame = self.pool.response(shard, number)
        state = None if frame.flags & Flag.LAST else state_from_arrays(frame.arrays())
        self.pool[shard].release(frame)
        return state


def _server_skew(shards: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the largest value of a server over the mean of all, for rows, bytes moved and requests."""
    return {
        "rows": shard_skew([sum(table["rows"] for table in facts["tables"].values()) for facts in shards]),
        "bytes": shard_skew([facts["bytes_in"] + facts["bytes_out"] for facts in shards]),
        "requests": shard_skew([facts["requests"] for facts in shards]),
    }


def _checked_out(out: Floats | None, shape: tuple[int, int]) -> Floats:
    if out is None:
        return np.empty(shape, np.float32)
    if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise InputError(f"`out` must be contiguous float32 of shape {shape}")
    return out
