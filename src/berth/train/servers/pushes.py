"""Gradients on their way to the servers: summed by key, small ones of several tables in one message."""

from __future__ import annotations

import numpy as np

from berth.train.servers.codec import CODECS, Codec, dtype_of, encode
from berth.train.servers.links import Links
from berth.train.servers.pulls import Joined
from berth.train.servers.route import Route
from berth.train.servers.wire import Array, Flag, Kind, Layout
from berth.train.sparse import Floats

_SMALL_BYTES = 64 << 10  # pushes below it share a message


class Pushes:
    """What this worker sends, in order; at most so many messages that are not confirmed."""

    def __init__(self, links: Links, codec: Codec) -> None:
        self._links = links
        self._codec: Codec = codec
        self._code = CODECS.index(codec)
        self._small: list[list[tuple[int, Array, Array, Array | None]]] = [[] for _ in range(len(links))]
        self._small_bytes = 0

    def push(self, joined: Joined, way: Route, values: Floats, seen: Floats | None) -> None:
        """Each server's part of a push: large ones at once, small ones with others."""
        for shard in range(len(self._links)):
            count = len(way.keys_of(shard))
            if (8 + 4 * joined.spec.dim) * count < _SMALL_BYTES:
                self._keep(shard, joined, way, values, seen)
            else:
                self._send_kept(shard)
                self._send(shard, Kind.PUSH, joined, way, values, seen)

    def merge(self, joined: Joined, way: Route, deltas: Floats) -> None:
        """Differences of rows, in mode geo."""
        for shard in range(len(self._links)):
            self._send(shard, Kind.MERGE, joined, way, deltas, None)

    def flush(self) -> None:
        """Send all that was kept."""
        if self._small_bytes:
            for shard in range(len(self._links)):
                self._send_kept(shard)
            self._small_bytes = 0

    def end_step(self, *, more: bool = False) -> None:
        """Send all that was kept, with the word that the step is over; if more follows at once, along with it."""
        for shard in range(len(self._links)):
            if self._small[shard] or not more:
                self._send_kept(shard, Flag.END_STEP)
            else:
                self._links[shard].end_step(self._links.step, more=True)
        self._small_bytes = 0

    def _keep(self, shard: int, joined: Joined, way: Route, values: Floats, seen: Floats | None) -> None:
        out = np.empty((len(way.keys_of(shard)), joined.spec.dim), dtype_of(self._codec))
        self._sum(shard, way, values, out)
        extra = None
        if seen is not None:
            extra = np.empty((len(out), 2), np.float32)
            way.add(shard, seen, extra)
        self._small[shard].append((joined.numbers[shard], way.keys_of(shard), out, extra))
        self._small_bytes += out.nbytes + 1
        if self._small_bytes > _SMALL_BYTES * len(self._links):
            self.flush()

    def _send(
        self, shard: int, kind: Kind, joined: Joined, way: Route, values: Floats, seen: Floats | None
    ) -> None:
        """Summed in place: where the payload travels from."""
        keys, dim = way.keys_of(shard), joined.spec.dim
        shapes = [(np.int32, (1, 2)), (np.int64, (len(keys),)), (dtype_of(self._codec), (len(keys), dim))]
        layout = Layout(shapes if seen is None else [*shapes, (np.float32, (len(keys), 2))])

        def fill(views: list[Array]) -> None:
            views[0][...] = (joined.numbers[shard], self._code)
            views[1][...] = keys
            self._sum(shard, way, values, views[2])
            if seen is not None:
                way.add(shard, seen, views[3])

        self._links.keep_bound(shard)
        self._links.ask_in_place(shard, kind, layout, fill)

    def _send_kept(self, shard: int, flags: int = Flag.NONE) -> None:
        kept, self._small[shard] = self._small[shard], []
        if not kept and not flags:
            return
        if not kept:
            self._links[shard].end_step(self._links.step)
            return
        self._links.keep_bound(shard)
        arrays: list[Array] = [np.array([[number, self._code] for number, *_ in kept], np.int32)]
        for _, keys, values, seen in kept:
            arrays += [keys, values] if seen is None else [keys, values, seen]
        self._links.ask(shard, Kind.PUSH, arrays, flags=flags)

    def _sum(self, shard: int, way: Route, values: Floats, out: Array) -> None:
        if self._codec == "fp32":
            way.add(shard, values, out)
            return
        whole = np.empty(out.shape, np.float32)
        way.add(shard, values, whole)
        encode(self._codec, whole, out)
