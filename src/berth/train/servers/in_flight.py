"""What one worker has in flight: pulls of rows, prefetched where the mode allows it, and pushes of gradients.

A pull requests the rows of several tables in one message per server. States of the keys of one batch of a table:

     announce()            prefetch_announced() at the end of a step,
         |                 or pull() of its batch                             pull()
         v       +----------------------------------------------> pending ------------> read
     announced --+                                                ^     |                |
                 |                         pull() of keys that    |     | stale, or      | if the pull was
                 | pull() of a             were not announced ----+     | pull() of      | read-only
                 v later batch                                          v other keys     v
              dropped                                         discarded (received,   uncreated
                                                              but not read)              |
                                                                                         | push() or
                                                                                         v create_deferred()
                                                                                      created

In sync mode a pending pull is valid for one `version`: a push, a step or a load makes it stale. In the other modes
older values are allowed, so it never is. In sync mode a pull of an announced batch is read-only: new rows are created
by the push, if the batch is trained on. Tables with admission are an exception: their pulls count, so they are neither
prefetched nor read-only.

Gradients are summed by key before they are pushed; small pushes of several tables share a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from berth.errors import ServerError
from berth.train.servers.protocol import (
    CODECS,
    Array,
    Codec,
    Flag,
    Frame,
    Kind,
    Layout,
    decode,
    dtype_of,
    encode,
)
from berth.train.servers.server_pool import ServerPool, check_message_size
from berth.train.shards.routing import Route, make_route
from berth.train.sparse import Floats, TableSpec

_RECENT = 4  # routes of recent pulls, reused by pushes
_MAX_ANNOUNCED = 64  # announced batches per table
_SMALL_BYTES = 64 << 10  # smaller pushes share a message


@dataclass(slots=True)
class RemoteTable:
    """A table on the servers, with the state of this worker's pulls."""

    spec: TableSpec
    table_ids: list[int]  # on each server
    announced: deque[Route] = field(default_factory=deque)
    recent: deque[Route] = field(default_factory=lambda: deque(maxlen=_RECENT))
    pending_pulls: deque[tuple[PendingPull, int]] = field(default_factory=deque)
    codec: Codec = "fp32"

    @property
    def code(self) -> int:
        """Return the codec as its number on the wire."""
        return CODECS.index(self.codec)

    def route_of(self, requested: Array, servers: int) -> Route:
        """Return the route of these keys, usually that of the last pull."""
        for route in self.recent:
            if route.matches(requested):
                return route
        return make_route(requested, servers)

    def take_announced(self, requested: Array) -> Route | None:
        """Remove and return the announced route of these keys; earlier ones were never pulled and are dropped."""
        for number, route in enumerate(self.announced):
            if route.matches(requested):
                for _ in range(number + 1):
                    self.announced.popleft()
                return route
        return None


@dataclass(slots=True, eq=False)
class PendingPull:
    """A pull of one or several tables, one message per server, whose rows have not all been read."""

    sections: list[tuple[RemoteTable, Route]]
    request_ids: list[int]  # one per server
    version: int
    unread: int  # sections not yet read
    read_only: bool = False  # creates no rows
    received: dict[int, Frame] = field(default_factory=dict)


class Pulls:
    """All pulls of one worker; see the diagram above."""

    def __init__(self, pool: ServerPool, tables: dict[str, RemoteTable]) -> None:
        self.version = 0
        self._pool = pool
        self._tables = tables
        self._is_sync = pool.mode == "sync"
        self._uncreated: list[tuple[RemoteTable, Route]] = []  # read ahead, not yet created by a push

    def announce(self, remote: RemoteTable, requested: Array) -> None:
        """Route the keys of a later pull; servers with cold rows load them."""
        if len(remote.announced) >= _MAX_ANNOUNCED:
            return
        route = make_route(requested, len(self._pool))
        remote.announced.append(route)
        if self._pool.tiered and self._is_sync:
            for shard in range(len(self._pool)):
                head = np.array([[remote.table_ids[shard], 0]], np.int32)
                self._pool.wait_for_window(shard)
                self._pool.send(shard, Kind.PREFETCH, [head, route.keys_of(shard)])

    @property
    def has_announced(self) -> bool:
        """Whether `prefetch_announced` has something to request."""
        return bool(self._prefetchable())

    def prefetch_announced(self) -> None:
        """Request the rows of announced batches: the next one in sync mode, all of them in the other modes."""
        while tables := self._prefetchable():
            sections = [(remote, remote.announced.popleft()) for remote in tables]
            pending = self._request(sections, read_only=self._is_sync)
            sections[0][0].pending_pulls.append((pending, 0))
            if self._is_sync:
                return

    def _prefetchable(self) -> list[RemoteTable]:
        """Return the tables with an announced batch that may be requested now."""
        return [
            remote
            for remote in self._tables.values()
            if remote.announced and not (self._is_sync and (remote.pending_pulls or remote.spec.admission))
        ]

    def pull(self, remote: RemoteTable, requested: Array, out: Floats) -> None:
        """Write the rows of the keys to `out`, from a pending pull if there is one."""
        pending, section = self._pending_for(remote, requested)
        route = pending.sections[section][1]
        if route not in remote.recent:
            remote.recent.append(route)
        if pending.read_only:
            self._uncreated.append((remote, route))
        self._read(pending, section, out)

    def peek(self, remote: RemoteTable, requested: Array, out: Floats) -> None:
        """Write the current rows of the keys to `out`; pending pulls stay pending."""
        self._read(
            self._request([(remote, remote.route_of(requested, len(self._pool)))], read_only=True), 0, out
        )

    def pushed(self, remote: RemoteTable, route: Route) -> None:
        """Note a push: it creates the rows of its keys and makes pending pulls stale."""
        self._uncreated = [uncreated for uncreated in self._uncreated if uncreated[1] is not route]
        self.version += 1

    def create_deferred(self) -> None:
        """Create the rows that were read ahead and not pushed."""
        uncreated, self._uncreated = self._uncreated, []
        for remote, route in uncreated:
            self._discard(self._request([(remote, route)]))

    def _read(self, pending: PendingPull, section: int, out: Floats) -> None:
        pending.unread -= 1
        for shard, frame in list(pending.received.items()):
            self._spread(pending, shard, frame, section, out)
        for shard, frame in self._pool.as_completed(_missing(pending)):
            pending.received[shard] = frame
            self._spread(pending, shard, frame, section, out)

    def _pending_for(self, remote: RemoteTable, requested: Array) -> tuple[PendingPull, int]:
        while remote.pending_pulls:
            pending, section = remote.pending_pulls.popleft()
            fresh = pending.version == self.version or not self._is_sync
            if fresh and pending.sections[section][1].matches(requested):
                return pending, section
            self._discard(pending)
        route = remote.take_announced(requested)
        if route is None:
            return self._request([(remote, remote.route_of(requested, len(self._pool)))]), 0
        read_only = self._is_sync and not remote.spec.admission
        others = [  # other tables of the same batch, unless a pull changes their state
            (other, other.announced.popleft())
            for other in self._tables.values()
            if other is not remote
            and other.announced
            and not other.pending_pulls
            and (not self._is_sync or (read_only and not other.spec.admission))
        ]
        return self._request([(remote, route), *others], read_only=read_only), 0

    def _request(self, sections: list[tuple[RemoteTable, Route]], *, read_only: bool = False) -> PendingPull:
        """Send a pull of some tables to all servers."""
        request_ids = []
        for shard in range(len(self._pool)):
            head = np.array([[remote.table_ids[shard], remote.code] for remote, _ in sections], np.int32)
            arrays: list[Array] = [head]
            check_message_size(
                sum(4 * remote.spec.dim * len(route.keys_of(shard)) + 64 for remote, route in sections)
            )
            for remote, route in sections:
                arrays.append(route.keys_of(shard))
                if remote.spec.counts_pulls:
                    arrays.append(route.counts_of(shard))
            flags = Flag.PEEK if read_only else Flag.NONE
            request_ids.append(self._pool.send(shard, Kind.PULL, arrays, flags=flags))
        pending = PendingPull(sections, request_ids, self.version, len(sections), read_only)
        for section, (remote, _) in enumerate(sections[1:], 1):
            remote.pending_pulls.append((pending, section))
        return pending

    def _spread(self, pending: PendingPull, shard: int, frame: Frame, section: int, out: Floats) -> None:
        remote, route = pending.sections[section]
        rows = decode(remote.codec, frame.arrays()[section])
        if rows.shape != (len(route.keys_of(shard)), out.shape[1]):
            raise ServerError(f"{self._pool[shard].name} returned rows of the wrong shape")
        route.spread(shard, rows, out)
        if not pending.unread:
            self._pool[shard].release(frame)

    def _discard(self, pending: PendingPull) -> None:
        """Receive and release a pull that is no longer needed."""
        pending.unread -= 1
        if pending.unread:
            return
        pending.received.update(self._pool.as_completed(_missing(pending)))
        for shard, frame in pending.received.items():
            self._pool[shard].release(frame)


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


def _missing(pending: PendingPull) -> dict[int, int]:
    return {
        shard: number for shard, number in enumerate(pending.request_ids) if shard not in pending.received
    }


def _sum(codec: Codec, shard: int, route: Route, values: Floats, out: Array) -> None:
    if codec == "fp32":
        route.add(shard, values, out)
        return
    whole = np.empty(out.shape, np.float32)
    route.add(shard, values, whole)
    encode(codec, whole, out)
