"""Look-ups: unique keys go to the ranks that own them, and rows come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from berth.train.resident.exchange import Exchange
from berth.train.resident.requests import Call, Headers, exchange_headers, no_numbers
from berth.train.resident.shard import ResidentShard
from berth.train.resident.table import ResidentTable, split_keys
from berth.train.shards.routing import Route
from berth.train.tables.hashing import Keys

_KEYS, _HAS = 0, 1  # columns of a header: keys for a rank, and whether rows were prefetched
_NONE = np.empty(0, np.int64)


class Lookups:
    """The look-ups of one rank among those of its stage, or of the whole run for evaluations."""

    def __init__(
        self,
        in_stage: Exchange,
        stage_ranks: Sequence[int],
        in_run: Exchange,
        tables: Mapping[str, ResidentTable],
        shard: ResidentShard,
    ) -> None:
        self.in_whole_run = False  # whether any rank may peek, and all others serve
        self._in_stage, self._stage_ranks, self._in_run = in_stage, stage_ranks, in_run
        self._tables, self._names, self._shard = tables, list(tables), shard

    def pull(self, table: ResidentTable, route: Route) -> Tensor:
        """Return the rows of a route's unique keys; missing rows are created.

        If every rank has prefetched rows, only headers are exchanged.
        """
        if route not in table.recent:
            table.recent.append(route)
        ready = table.prefetched_rows(route)
        if ready is not None:
            table.uncreated.append(route)
        numbers = no_numbers(self._in_stage, self._names)
        numbers[:, 0, _KEYS] = 0 if ready is not None else route.counts
        numbers[:, 0, _HAS] = ready is not None
        headers = exchange_headers(self._in_stage, Call.PULL, self._names, numbers, table=table.number)
        if ready is not None and all(headers.column(0, _HAS)):
            return ready
        found = self._pull(table, route if ready is None else None, headers)
        return found if ready is None else ready

    def _pull(self, table: ResidentTable, route: Route | None, headers: Headers) -> Tensor:
        """Send keys, those of no route if this rank has its rows, and return their rows."""
        exchange = self._in_stage
        come, to = headers.column(0, _KEYS), [0] * exchange.size if route is None else route.counts
        sent = _NONE if route is None else route.sent
        asked = exchange.rows(torch.from_numpy(sent), to, come).numpy()
        times = None
        if table.opened.counts_pulls:
            own = _NONE if route is None else _occurrences(route)
            times = exchange.rows(torch.from_numpy(own), to, come).numpy()
        parts = zip(
            table.remembered(exchange.size), headers.column(0, _HAS), split_keys(asked, come), strict=True
        )
        table.asked = [before if has else now for before, has, now in parts]
        if route is not None:
            table.requested = route
        return exchange.rows(self._shard.pull(table.name, asked, times), come, to)

    def peek(self, table: ResidentTable, route: Route) -> Tensor:
        """Return what `pull` would, without creating rows."""
        exchange = self._in_run if self.in_whole_run else self._in_stage
        ranks = range(exchange.size) if self.in_whole_run else self._stage_ranks
        counts = dict(zip(table.owners, route.counts, strict=True))
        to = [counts.get(rank, 0) for rank in ranks]
        _, rows = self._peek(exchange, Call.PEEK, table.number, route.sent, to)
        return rows

    def serve(self) -> bool:
        """Answer a look-up of other ranks of the run; returns whether there was one."""
        headers, _ = self._peek(self._in_run, Call.SERVE, 0, _NONE, [0] * self._in_run.size)
        return headers.looked_up is not None

    def _peek(
        self, exchange: Exchange, call: Call, table: int, sent: Keys, to: list[int]
    ) -> tuple[Headers, Tensor]:
        numbers = no_numbers(exchange, self._names)
        numbers[:, 0, _KEYS] = to
        headers = exchange_headers(exchange, call, self._names, numbers, table=table)
        if headers.looked_up is None:
            return headers, torch.empty(0)
        name, come = self._names[headers.looked_up], headers.column(0, _KEYS)
        asked = exchange.rows(torch.from_numpy(sent), to, come).numpy()
        spec = self._tables[name].spec
        if len(asked):
            rows = self._shard.peek(name, asked)
        else:
            rows = torch.empty((0, spec.dim if spec is not None else 1), device=self._shard.device)
        return headers, exchange.rows(rows, come, to)


def _occurrences(route: Route) -> Keys:
    """Return how often each unique key of a route occurs."""
    return np.concatenate([route.counts_of(shard) for shard in range(route.shards)]).astype(np.int64)
