"""Mode geo: a worker trains on its own copies of rows, and every few steps the servers hear what it has learned.

A row is fetched when it is first touched. What the worker has learned since is sent as a difference; the server
adds each worker's share of it, and the worker goes on from the merged row. The optimiser's state stays with
the worker. Far fewer messages, at the price of rows that are a few steps old.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.train.servers.address import Address
from berth.train.servers.client import RemoteStore
from berth.train.servers.secret import Secret
from berth.train.sparse import Floats, Keys, SparseStore, TableSpec
from berth.train.tables import State, Table
from berth.train.tables.hashing import Keys as Signed
from berth.train.tables.index import EMPTY
from berth.train.tables.merge import distinct
from berth.train.tables.store import as_keys


@dataclass(slots=True)
class Copy:
    """This worker's rows of a table, and the same rows as the servers last told them."""

    mine: Table
    told: Table
    touched: list[Signed] = field(default_factory=list)  # since the last exchange


class GeoStore:
    """A `SparseStore` of local copies that are merged on servers every `every` steps."""

    def __init__(self, remote: RemoteStore, every: int = 10) -> None:
        if every < 1:
            raise InputError(f"copies are merged every so many steps, not every {every}")
        self.remote = remote
        self.every = every
        self._copies: dict[str, Copy] = {}
        self._steps = 0

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Makes the tables there, and empty copies here."""
        for spec in tables:
            if spec.admission or spec.life:
                raise InputError(f"table {spec.name!r}: rows come and go on servers, not in mode geo")
        self.remote.open(tables)
        for spec in tables:
            self._copies[spec.name] = Copy(
                Table(spec.dim, optimiser=spec.optimiser, initialiser=spec.initialiser), Table(spec.dim)
            )

    def prefetch(self, table: str, keys: Keys) -> None:
        """Fetches rows that have no copy yet."""
        self._fetch(table, distinct(as_keys(keys))[0], anew=False)

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Own copies of rows; those not seen before are fetched."""
        asked = as_keys(keys)
        self._fetch(table, distinct(asked)[0], anew=False)
        return self._copy(table).mine.pull(asked, out=out)

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Own copies of rows, and those of the servers where there is none; none is made."""
        asked, mine = as_keys(keys), self._copy(table).mine
        rows = mine.peek(asked, out=out)
        absent = np.flatnonzero(mine.store.index.find(asked)[0] == EMPTY)
        if len(absent):
            rows[absent] = self.remote.peek(table, asked[absent].view(np.uint64))
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
        """Own copies learn at once."""
        asked, copy = as_keys(keys), self._copy(table)
        self._fetch(table, distinct(asked)[0], anew=False)
        copy.mine.push(asked, gradients, shows, clicks)
        copy.touched.append(asked.copy())

    def end_step(self, step: int) -> None:
        """Exchanges with the servers when it is time."""
        self._steps += 1
        if self._steps % self.every == 0:
            self.exchange()
        self.remote.end_step(step)

    def exchange(self) -> None:
        """Sends what was learned since the last time, and goes on from the merged rows."""
        for name, copy in self._copies.items():
            if not copy.touched:
                continue
            keys = distinct(np.concatenate(copy.touched))[0]
            copy.touched = []
            self.remote.merge(name, keys.view(np.uint64), copy.mine.pull(keys) - copy.told.pull(keys))
            self._fetch(name, keys, anew=True)

    def end_day(self) -> None:
        """Waits for all workers to come to the end of the day."""
        self.exchange()
        self.remote.end_day()

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """The merged rows, after an exchange; optimisers start anew from them."""
        self.exchange()
        yield from self.remote.save(changed_only=changed_only)

    def load(self, table: str, state: State) -> None:
        """Rows for the servers; copies are fetched again."""
        self.remote.load(table, state)
        copy = self._copy(table)
        for rows in (copy.mine, copy.told):
            rows.delete(rows.store.index.entries()[0])
        copy.touched = []

    def statistics(self) -> Mapping[str, Any]:
        """As the servers tell it."""
        return self.remote.statistics()

    def close(self) -> None:
        """Sends what is left, then leaves."""
        self.exchange()
        self.remote.close()

    def _copy(self, table: str) -> Copy:
        if table not in self._copies:
            raise UnknownNameError("table", table, self._copies)
        return self._copies[table]

    def _fetch(self, table: str, keys: Signed, *, anew: bool) -> None:
        copy = self._copy(table)
        if not anew:
            keys = keys[copy.mine.store.index.find(keys)[0] == EMPTY]
        if not len(keys):
            return
        rows = self.remote.pull(table, keys.view(np.uint64))
        for mine in (copy.mine, copy.told):
            _put(mine, keys, rows)


def connect(addresses: Sequence[Address], secret: Secret, *, every: int = 10, **settings: Any) -> SparseStore:
    """The store for the mode in which the servers run."""
    remote = RemoteStore(addresses, secret, **settings)
    return GeoStore(remote, every) if remote.mode == "geo" else remote


def _put(table: Table, keys: Signed, rows: Floats) -> None:
    """Set weights, and leave the optimiser's state as it is."""
    table.touch(keys)
    places = table.store.locate(keys)[0]
    data = table.store.rows.data
    starts = places.astype(np.int64) * table.width
    data[starts[:, None] + np.arange(table.dim)] = rows
