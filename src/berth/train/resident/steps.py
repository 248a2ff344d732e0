"""The end of a step: gradients go to the ranks that own their rows, with the keys of the next step.

The owner sums the gradients of all ranks in rank order, updates each row once, and sends the rows of the next step
without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from berth.train.resident.exchange import Exchange, Numbers
from berth.train.resident.requests import Call, Headers, exchange_headers, no_numbers
from berth.train.resident.shard import ResidentShard
from berth.train.resident.table import Push, ResidentTable, split_keys
from berth.train.shards.routing import Route
from berth.train.tables.hashing import Keys

_GRADIENTS, _TOUCHED, _NEXT, _REUSED = range(4)  # columns of a header
_LISTS = 3  # of keys: with gradients, of rows to create, of the next step
_SENDS_KEYS, _ANNOUNCES = 1, 2  # flags of a header


class StepEnd:
    """The ends of steps of one rank, for the tables of its stage."""

    def __init__(
        self, exchange: Exchange, names: Sequence[str], tables: Sequence[ResidentTable], shard: ResidentShard
    ) -> None:
        self._exchange, self._names, self._tables, self._shard = exchange, names, tables, shard

    def __call__(self) -> None:
        """Exchange gradients and keys, apply gradients to own rows, and start sending rows of the next step."""
        if not self._tables:
            return
        pushes = [table.take_push(self._shard.device) for table in self._tables]
        routes = [_routes(table, push) for table, push in zip(self._tables, pushes, strict=True)]
        headers, keys = self._exchange_keys(pushes, routes)
        for number, (table, push) in enumerate(zip(self._tables, pushes, strict=True)):
            lists = [rank[number] for rank in keys]
            self._apply(table, push, headers, [one[_GRADIENTS] for one in lists])
            self._shard.touch(table.name, np.concatenate([one[_TOUCHED] for one in lists]))
            self._send_next(table, headers, [one[_NEXT] for one in lists])

    def _exchange_keys(
        self, pushes: Sequence[Push | None], routes: Sequence[Sequence[Sequence[Route]]]
    ) -> tuple[Headers, list[list[list[Keys]]]]:
        """Send keys to their owners, those of all tables at once; returns those of each rank, table and list."""
        size, flags = self._exchange.size, 0
        numbers = no_numbers(self._exchange, self._names)
        for table, push, lists in zip(self._tables, pushes, routes, strict=True):
            for column, listed in enumerate(lists):
                for route in listed:
                    numbers[:, table.number, column] += route.counts
            if push is not None and not lists[_GRADIENTS]:
                numbers[:, table.number, _GRADIENTS] = push.route.counts
                numbers[:, table.number, _REUSED] = 1
            flags |= (_SENDS_KEYS if any(lists) else 0) | (_ANNOUNCES if lists[_NEXT] else 0)
        headers = exchange_headers(self._exchange, Call.STEP, self._names, numbers, flags=flags)
        if not headers.any_flag(_SENDS_KEYS):
            return headers, [[[_none()] * _LISTS for _ in self._tables] for _ in range(size)]
        sent = [
            route.keys_of(shard)
            for shard in range(size)
            for lists in routes
            for listed in lists
            for route in listed
        ]
        to, come = (self._key_counts(one) for one in (numbers, headers.numbers))
        keys = self._exchange.rows(
            torch.from_numpy(np.concatenate([_none(), *sent])),
            to.sum(axis=(1, 2)).tolist(),
            come.sum(axis=(1, 2)).tolist(),
        ).numpy()
        parts = iter(split_keys(keys, come.reshape(-1).tolist()))
        return headers, [[[next(parts) for _ in range(_LISTS)] for _ in self._tables] for _ in range(size)]

    def _key_counts(self, numbers: Numbers) -> Numbers:
        """Return the keys that are sent, [rank, table, list]: none with gradients whose keys the owner remembers."""
        counts = numbers[:, [table.number for table in self._tables]].copy()
        counts[:, :, _GRADIENTS] *= 1 - counts[:, :, _REUSED]
        return counts[:, :, :_LISTS]

    def _apply(
        self, table: ResidentTable, push: Push | None, headers: Headers, new_keys: Sequence[Keys]
    ) -> None:
        """Exchange the gradients of a table, and update own rows with those of all ranks."""
        exchange, spec = self._exchange, table.opened
        come = headers.column(table.number, _GRADIENTS)
        to = [0] * exchange.size if push is None else push.route.counts
        sums = torch.empty((0, spec.dim), device=self._shard.device) if push is None else push.sums
        gradients = exchange.rows(sums, to, come)
        views = None
        if spec.counts_clicks:
            own = np.empty((0, 2), np.float32) if push is None or push.views is None else push.views
            views = exchange.rows(torch.from_numpy(own), to, come).numpy()
        reused = headers.column(table.number, _REUSED)
        keys = [
            before if reuse else new
            for before, reuse, new in zip(table.remembered(exchange.size), reused, new_keys, strict=True)
        ]
        self._shard.push(table.name, np.concatenate(keys), gradients, views)

    def _send_next(self, table: ResidentTable, headers: Headers, asked: list[Keys]) -> None:
        """Send the rows of the next step to the ranks that announced their keys, without waiting."""
        table.drop_prefetched()
        table.prefetched, table.announced = table.announced, []
        table.requested = table.prefetched[0] if len(table.prefetched) == 1 else None
        table.asked = asked
        if not headers.any_flag(_ANNOUNCES):
            return
        wanted = [sum(counts) for counts in zip(*(route.counts for route in table.prefetched), strict=True)]
        rows = self._shard.peek(table.name, np.concatenate(asked))
        table.arriving = self._exchange.start_rows(
            rows, [len(keys) for keys in asked], wanted or [0] * self._exchange.size
        )


def _routes(table: ResidentTable, push: Push | None) -> list[list[Route]]:
    """Return the routes whose keys go to the owners: of gradients, of rows to create, of the next step."""
    route = push.route if push is not None else None
    touched = [other for other in table.uncreated if other is not route]
    table.uncreated = []
    with_gradients = [route] if route is not None and route is not table.requested else []
    return [with_gradients, touched, table.announced]


def _none() -> Keys:
    return np.empty(0, np.int64)
