"""Rows on their way to a worker: several tables in one message to each server, some before they are asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from berth.errors import ServerError
from berth.train.servers.codec import CODECS, Codec, decode
from berth.train.servers.links import Links, must_fit
from berth.train.servers.route import Route, route
from berth.train.servers.wire import Array, Flag, Frame, Kind
from berth.train.sparse import Floats, TableSpec

_RECENT = 4  # routes of pulls that a push may use again
_MOST_AHEAD = 64  # batches of a table that are prepared


@dataclass(slots=True)
class Joined:
    """A table, as this worker knows it."""

    spec: TableSpec
    numbers: list[int]  # on each server
    ahead: deque[Route] = field(default_factory=deque)
    recent: deque[Route] = field(default_factory=lambda: deque(maxlen=_RECENT))
    flights: deque[tuple[Flight, int]] = field(default_factory=deque)

    def route_of(self, asked: Array, servers: int) -> Route:
        """The way of these keys: mostly that of the last pull."""
        for way in self.recent:
            if way.is_of(asked):
                return way
        return route(asked, servers)

    def announced(self, asked: Array) -> Route | None:
        """The way that was prepared for these keys; those before it were announced and never asked for."""
        for number, way in enumerate(self.ahead):
            if way.is_of(asked):
                for _ in range(number + 1):
                    self.ahead.popleft()
                return way
        return None


@dataclass(slots=True, eq=False)
class Flight:
    """Rows of one or several tables that were asked for in one message to each server."""

    sections: list[tuple[Joined, Route]]
    numbers: list[int]  # of the request to each server
    epoch: int
    left: int  # sections that nobody has read yet
    peeks: bool = False  # no rows were made for it
    landed: dict[int, Frame] = field(default_factory=dict)


class Pulls:
    """All rows that are under way. In sync mode they are good until something may have learned: an epoch."""

    def __init__(self, links: Links, codec: Codec, tables: dict[str, Joined]) -> None:
        self.epoch = 0
        self._links = links
        self._codec: Codec = codec
        self._code = CODECS.index(codec)
        self._tables = tables
        self._is_sync = links.mode == "sync"
        self._owed: list[tuple[Joined, Route]] = []  # rows that were read ahead, and not made by a push yet

    def prepare(self, joined: Joined, asked: Array) -> None:
        """Keys that will be pulled: find their way, and let servers fetch cold rows."""
        if len(joined.ahead) >= _MOST_AHEAD:
            return
        way = route(asked, len(self._links))
        joined.ahead.append(way)
        if self._links.tiered and self._is_sync:
            for shard in range(len(self._links)):
                head = np.array([[joined.numbers[shard], 0]], np.int32)
                self._links.keep_bound(shard)
                self._links.ask(shard, Kind.WARM, [head, way.keys_of(shard)])

    @property
    def has_ahead(self) -> bool:
        """Whether `fetch_ahead` has something to ask for."""
        return bool(self._announced())

    def fetch_ahead(self) -> None:
        """Ask for the rows of the batch that was announced: a step has ended, so they are those of the next one.

        New rows are not made: that is done by the push, if the batch is really learned from. Where older values
        are allowed, the rows of all batches that were announced are asked for.
        """
        while tables := self._announced():
            sections = [(joined, joined.ahead.popleft()) for joined in tables]
            flight = self._launch(sections, peeks=self._is_sync)
            sections[0][0].flights.append((flight, 0))
            if self._is_sync:
                return

    def _announced(self) -> list[Joined]:
        """Tables with a batch that may be asked for now; where a pull decides who gets a row, none is in sync mode."""
        return [
            joined
            for joined in self._tables.values()
            if joined.ahead and not (self._is_sync and (joined.flights or joined.spec.admission))
        ]

    def pull(self, joined: Joined, asked: Array, out: Floats) -> None:
        """Rows of keys, from those under way if they are there."""
        flight, section = self._flight(joined, asked)
        way = flight.sections[section][1]
        if way not in joined.recent:
            joined.recent.append(way)
        if flight.peeks:
            self._owed.append((joined, way))
        self._read(flight, section, out)

    def peek(self, joined: Joined, asked: Array, out: Floats) -> None:
        """Rows of keys as they are now; those under way stay under way."""
        self._read(self._launch([(joined, joined.route_of(asked, len(self._links)))], peeks=True), 0, out)

    def pushed(self, joined: Joined, way: Route) -> None:
        """A push makes the rows of its keys; from now on, others are told."""
        self._owed = [owed for owed in self._owed if owed[1] is not way]
        self.epoch += 1

    def settle(self) -> None:
        """Rows that were pulled and not pushed are made, as if they had not been read ahead."""
        owed, self._owed = self._owed, []
        for joined, way in owed:
            self._forget(self._launch([(joined, way)]))

    def _read(self, flight: Flight, section: int, out: Floats) -> None:
        flight.left -= 1
        for shard, frame in list(flight.landed.items()):
            self._spread(flight, shard, frame, section, out)
        for shard, frame in self._links.arrivals(_missing(flight)):
            flight.landed[shard] = frame
            self._spread(flight, shard, frame, section, out)

    def _flight(self, joined: Joined, asked: Array) -> tuple[Flight, int]:
        while joined.flights:
            flight, section = joined.flights.popleft()
            fresh = flight.epoch == self.epoch or not self._is_sync
            if fresh and flight.sections[section][1].is_of(asked):
                return flight, section
            self._forget(flight)
        way = joined.announced(asked)
        if way is None:
            return self._launch([(joined, joined.route_of(asked, len(self._links)))]), 0
        peeks = self._is_sync and not joined.spec.admission
        along = [  # other tables' keys of the same batch, unless being asked for would change something for them
            (other, other.ahead.popleft())
            for other in self._tables.values()
            if other is not joined
            and other.ahead
            and not other.flights
            and (not self._is_sync or (peeks and not other.spec.admission))
        ]
        return self._launch([(joined, way), *along], peeks=peeks), 0

    def _launch(self, sections: list[tuple[Joined, Route]], *, peeks: bool = False) -> Flight:
        """Ask all servers for the rows of some tables."""
        numbers = []
        for shard in range(len(self._links)):
            head = np.array([[joined.numbers[shard], self._code] for joined, _ in sections], np.int32)
            arrays: list[Array] = [head]
            must_fit(sum(4 * joined.spec.dim * len(way.keys_of(shard)) + 64 for joined, way in sections))
            for joined, way in sections:
                arrays.append(way.keys_of(shard))
                if joined.spec.counts_pulls:
                    arrays.append(way.times_of(shard))
            flags = Flag.PEEK if peeks else Flag.NONE
            numbers.append(self._links.ask(shard, Kind.PULL, arrays, flags=flags))
        flight = Flight(sections, numbers, self.epoch, len(sections), peeks)
        for section, (joined, _) in enumerate(sections[1:], 1):
            joined.flights.append((flight, section))
        return flight

    def _spread(self, flight: Flight, shard: int, frame: Frame, section: int, out: Floats) -> None:
        rows, way = decode(self._codec, frame.arrays()[section]), flight.sections[section][1]
        if rows.shape != (len(way.keys_of(shard)), out.shape[1]):
            raise ServerError(f"{self._links[shard].name} answered with rows of another shape")
        way.spread(shard, rows, out)
        if not flight.left:
            self._links[shard].release(frame)

    def _forget(self, flight: Flight) -> None:
        """Rows that nobody wants any more must still be taken from the wire."""
        flight.left -= 1
        if flight.left:
            return
        flight.landed.update(self._links.arrivals(_missing(flight)))
        for shard, frame in flight.landed.items():
            self._links[shard].release(frame)


def _missing(flight: Flight) -> dict[int, int]:
    return {shard: number for shard, number in enumerate(flight.numbers) if shard not in flight.landed}
