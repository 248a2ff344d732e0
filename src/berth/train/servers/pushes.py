"""Pushes of one worker: gradients summed by key; small pushes of several tables share a message."""

from __future__ import annotations

from typing import Any

import numpy as np

from berth.train.servers.codec import Codec, dtype_of, encode
from berth.train.servers.protocol import Array, Flag, Kind, Layout
from berth.train.servers.pulls import RemoteTable
from berth.train.servers.server_pool import ServerPool
from berth.train.shards.routing import Route
from berth.train.sparse import Floats

_SMALL_BYTES = 64 << 10  # smaller pushes share a message


class Pushes:
    """Sends the pushes of one worker in order, with a bound on unacknowledged messages."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self._small: list[list[tuple[tuple[int, int], Array, Array, Array | None]]] = [
            [] for _ in range(len(pool))
        ]
        self._small_bytes = 0

    def push(self, remote: RemoteTable, route: Route, values: Floats, extra: Floats | None) -> None:
        """Send each server its part of a push: a large part at once, a small one batched with others.

        `extra` are shows and clicks of keys, or the settings of the optimiser of dense weights.
        """
        for shard in range(len(self._pool)):
            count = len(route.keys_of(shard))
            if (8 + 4 * remote.spec.dim) * count < _SMALL_BYTES:
                self._batch_small(shard, remote, route, values, extra)
            else:
                self._send_small(shard)
                self._send(shard, Kind.PUSH, remote, route, values, extra)

    def merge(self, remote: RemoteTable, route: Route, deltas: Floats, state: Floats | None) -> None:
        """Send differences of rows, and of their optimiser state (mode geo)."""
        for shard in range(len(self._pool)):
            self._send(shard, Kind.MERGE, remote, route, deltas, state)

    def flush(self) -> None:
        """Send the batched small pushes."""
        if self._small_bytes:
            for shard in range(len(self._pool)):
                self._send_small(shard)
            self._small_bytes = 0

    def end_step(self, *, more: bool = False) -> None:
        """Send the batched pushes and end the step; with `more`, the message waits for the pull that follows."""
        for shard in range(len(self._pool)):
            if self._small[shard] or not more:
                self._send_small(shard, Flag.END_STEP)
            else:
                self._pool[shard].end_step(self._pool.step, more=True)
        self._small_bytes = 0

    def _batch_small(
        self, shard: int, remote: RemoteTable, route: Route, values: Floats, extra: Floats | None
    ) -> None:
        out = np.empty((len(route.keys_of(shard)), remote.spec.dim), dtype_of(remote.codec))
        _sum(remote.codec, shard, route, values, out)
        sent = extra
        if extra is not None and not remote.spec.is_dense:
            sent = np.empty((len(out), 2), np.float32)
            route.add(shard, extra, sent)
        self._small[shard].append(((remote.table_ids[shard], remote.code), route.keys_of(shard), out, sent))
        self._small_bytes += out.nbytes + 1
        if self._small_bytes > _SMALL_BYTES * len(self._pool):
            self.flush()

    def _send(
        self,
        shard: int,
        kind: Kind,
        remote: RemoteTable,
        route: Route,
        values: Floats,
        extra: Floats | None,
    ) -> None:
        """Send one message; gradients are summed directly into its payload."""
        keys, dim = route.keys_of(shard), remote.spec.dim
        shapes: list[tuple[Any, tuple[int, ...]]] = [(np.int32, (1, 2)), (np.int64, (len(keys),))]
        shapes.append((dtype_of(remote.codec), (len(keys), dim)))
        if extra is not None:
            columns = extra.shape[-1]
            shapes.append((np.float32, extra.shape if remote.spec.is_dense else (len(keys), columns)))
        layout = Layout(shapes)

        def fill(views: list[Array]) -> None:
            views[0][...] = (remote.table_ids[shard], remote.code)
            views[1][...] = keys
            _sum(remote.codec, shard, route, values, views[2])
            if extra is not None and remote.spec.is_dense:
                views[3][...] = extra
            elif extra is not None:
                route.add(shard, extra, views[3])

        self._pool.wait_for_window(shard)
        self._pool.send_in_place(shard, kind, layout, fill)

    def _send_small(self, shard: int, flags: int = Flag.NONE) -> None:
        small, self._small[shard] = self._small[shard], []
        if not small and not flags:
            return
        if not small:
            self._pool[shard].end_step(self._pool.step)
            return
        self._pool.wait_for_window(shard)
        arrays: list[Array] = [np.array([section for section, *_ in small], np.int32)]
        for _, keys, values, extra in small:
            arrays += [keys, values] if extra is None else [keys, values, extra]
        self._pool.send(shard, Kind.PUSH, arrays, flags=flags)


def _sum(codec: Codec, shard: int, route: Route, values: Floats, out: Array) -> None:
    if codec == "fp32":
        route.add(shard, values, out)
        return
    whole = np.empty(out.shape, np.float32)
    route.add(shard, values, whole)
    encode(codec, whole, out)
