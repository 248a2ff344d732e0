"""The state of one resident table on one rank: its own look-ups, and what other ranks asked it for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from berth.train.resident.exchange import PendingRows
from berth.train.shards.routing import Route, make_route
from berth.train.sparse import Floats, TableSpec
from berth.train.tables.hashing import Keys

_RECENT = 4  # routes of recent pulls, reused by pushes


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients of a step, summed by the unique keys of a route, with shows and clicks if the table uses them."""

    route: Route
    sums: Tensor  # on the device of the rank
    views: Floats | None


@dataclass(slots=True, eq=False)
class ResidentTable:
    """A table. Rows of the next step are `announced`, then `prefetched`; those that were pulled exist at the owner
    after the next push, or are created at the end of the step."""

    number: int  # in the order of the model
    owners: list[int]  # rank of each shard
    spec: TableSpec | None = None
    recent: deque[Route] = field(default_factory=lambda: deque(maxlen=_RECENT))
    announced: list[Route] = field(default_factory=list)
    prefetched: list[Route] = field(default_factory=list)
    arriving: PendingRows | None = None  # rows of the prefetched routes
    uncreated: list[Route] = field(default_factory=list)  # prefetched and pulled
    requested: Route | None = None  # whose keys the owners remember
    asked: list[Keys] = field(default_factory=list)  # by rank, those that this one remembers
    pushed: list[tuple[Keys, Tensor, Floats | None]] = field(default_factory=list)  # in this step
    _positions: tuple[Route, Tensor] | None = None

    @property
    def name(self) -> str:
        """Return the name of the table."""
        return self.opened.name

    @property
    def opened(self) -> TableSpec:
        """Return the description of the table, which is open."""
        assert self.spec is not None
        return self.spec

    def route_of(self, keys: Keys) -> Route:
        """Return the route of these keys, usually one that is known."""
        for route in (*self.prefetched, *self.recent):
            if route.matches(keys):
                return route
        return make_route(keys, len(self.owners))

    def prefetched_rows(self, route: Route) -> Tensor | None:
        """Return the rows of a prefetched route, waiting for them; None if it is not one."""
        if self.arriving is None or not any(route is other for other in self.prefetched):
            return None
        rows = self.arriving.wait()
        if len(self.prefetched) == 1:
            return rows
        counts = np.array([other.counts for other in self.prefetched])  # [route, shard]
        number = next(number for number, other in enumerate(self.prefetched) if other is route)
        firsts = np.cumsum(counts.sum(axis=0)) - counts.sum(axis=0) + counts[:number].sum(axis=0)
        ends = firsts + counts[number]
        return torch.cat([rows[first:end] for first, end in zip(firsts, ends, strict=True)])

    def drop_prefetched(self) -> None:
        """Forget prefetched rows, once they have arrived."""
        if self.arriving is not None:
            self.arriving.wait()
        self.arriving, self.prefetched = None, []

    def positions(self, route: Route, device: torch.device) -> Tensor:
        """Return for each key of a batch the index of its row among those of the unique keys, on the device."""
        if self._positions is None or self._positions[0] is not route:
            self._positions = route, torch.from_numpy(route.positions()).to(device).long()
        return self._positions[1]

    def remembered(self, ranks: int) -> list[Keys]:
        """Return the keys of the last request of each rank."""
        return self.asked or [np.empty(0, np.int64)] * ranks

    def take_push(self, device: torch.device) -> Push | None:
        """Return the sums of this step's gradients, if there are any."""
        pushed, self.pushed = self.pushed, []
        if not pushed:
            return None
        keys, gradients, views = pushed[0]
        if len(pushed) > 1:  # of several layers with one table
            keys = np.concatenate([part for part, _, _ in pushed])
            gradients = torch.cat([part for _, part, _ in pushed])
            parts = [part for _, _, part in pushed if part is not None]
            views = np.concatenate(parts) if parts else None
        route = self.route_of(keys)
        if device.type == "cpu":
            sums = torch.from_numpy(_by_key(route, gradients.numpy()))
        else:
            sums = gradients.new_zeros((len(route.sent), gradients.shape[1]))
            add = sums.index_copy_ if len(route.sent) == len(keys) else sums.index_add_
            add(0, self.positions(route, device), gradients)
        return Push(route, sums, None if views is None else _by_key(route, views))


def _by_key(route: Route, values: Floats) -> Floats:
    """Return the sums of values by unique key, in batch order."""
    out = np.empty((len(route.sent), values.shape[1]), np.float32)
    for shard in range(route.shards):
        route.add(shard, values, out[route.bounds[shard] : route.bounds[shard + 1]])
    return out


def spread(route: Route, rows: Tensor, out: Floats | None) -> Floats:
    """Return the row of each key of a batch, from those of its unique keys in host memory."""
    found: Floats = rows.numpy()
    out = np.empty((len(route.keys), found.shape[1]), np.float32) if out is None else out
    for shard in range(route.shards):
        route.spread(shard, found[route.bounds[shard] : route.bounds[shard + 1]], out)
    return out


def split_keys(keys: Keys, counts: list[int]) -> list[Keys]:
    """Return consecutive parts of keys."""
    return np.split(keys, np.cumsum(counts)[:-1])
