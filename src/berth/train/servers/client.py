"""Tables on servers, as a worker sees them.

A batch's distinct keys go to all servers at once, in one message each for all tables that are known to be asked
for next; answers are spread into the output as they come. Gradients are summed before they travel and sent
without waiting for an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.train.servers.address import Address
from berth.train.servers.codec import Codec, checked
from berth.train.servers.link import Manners
from berth.train.servers.links import Links
from berth.train.servers.messages import PART_BYTES, cut, state_arrays, state_of
from berth.train.servers.pulls import Joined, Pulls
from berth.train.servers.pushes import Pushes
from berth.train.servers.route import route
from berth.train.servers.secret import Secret
from berth.train.servers.specs import to_json
from berth.train.servers.wire import Flag, Kind, pack_json, read_json
from berth.train.sparse import Floats, Keys, TableSpec
from berth.train.tables import State, join, shard_skew, split
from berth.train.tables.life import shows_and_clicks
from berth.train.tables.statistics import Counts
from berth.train.tables.store import as_keys

_COUNTED = tuple(field.name for field in fields(Counts))


class RemoteStore:
    """A `SparseStore` whose rows live on servers."""

    def __init__(
        self,
        addresses: Sequence[Address],
        secret: Secret,
        *,
        rank: int = 0,
        workers: int = 1,
        generation: int = 1,
        codec: Codec = "fp32",
        manners: Manners | None = None,
    ) -> None:
        if not addresses:
            raise InputError("a store of remote tables needs at least one server")
        self.links = Links(
            addresses, secret, manners or Manners(), rank=rank, workers=workers, generation=generation
        )
        self.mode = self.links.mode
        self._tables: dict[str, Joined] = {}
        self._pulls = Pulls(self.links, checked(codec), self._tables)
        self._pushes = Pushes(self.links, checked(codec))

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Makes the tables on all servers, or joins them."""
        facts = pack_json([to_json(spec) for spec in tables])
        numbers = [self.links.ask(shard, Kind.OPEN, [facts]) for shard in range(len(self.links))]
        told = [[0] * len(self.links) for _ in tables]
        for shard, frame in self.links.answers(numbers):
            for which, number in zip(told, frame.arrays()[0].tolist(), strict=True):
                which[shard] = number
        for spec, which in zip(tables, told, strict=True):
            self._tables[spec.name] = Joined(spec, which)

    def prefetch(self, table: str, keys: Keys) -> None:
        """Prepares the keys; cold rows are fetched there, and values too where the mode allows older ones."""
        self._pulls.prepare(self._joined(table), as_keys(keys))

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """A row for each key, duplicates too."""
        joined, asked = self._joined(table), as_keys(keys)
        out = _fitting(out, (len(asked), joined.spec.dim))
        self._pushes.flush()
        self._pulls.pull(joined, asked, out)
        return out

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """What a pull would return; rows not seen before are not made."""
        joined, asked = self._joined(table), as_keys(keys)
        out = _fitting(out, (len(asked), joined.spec.dim))
        self._pushes.flush()
        self._pulls.peek(joined, asked, out)
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
        """Sends the sums of gradients of each key; returns before they have arrived."""
        joined, asked = self._joined(table), as_keys(keys)
        shape = (len(asked), joined.spec.dim)
        if gradients.shape != shape:
            raise InputError(f"{len(asked)} keys need gradients of shape {shape}, not {gradients.shape}")
        slopes = np.ascontiguousarray(gradients, np.float32)
        seen = shows_and_clicks(joined.spec.counts_clicks, len(asked), shows, clicks)
        way = joined.route_of(asked, len(self.links))
        self._pushes.push(joined, way, slopes, seen)
        self._pulls.pushed(joined, way)

    def merge(self, table: str, keys: Keys, deltas: Floats) -> None:
        """Sends what was learned on own copies of rows, each key once (mode geo)."""
        joined, way = self._joined(table), route(as_keys(keys), len(self.links))
        self._pushes.merge(joined, way, deltas)
        self._pulls.epoch += 1

    def end_step(self, step: int) -> None:
        """Tells all servers that this worker's step is over."""
        self._pulls.settle()
        self.links.step = step
        self._pushes.end_step(more=self._pulls.has_ahead)
        self.links.step = step + 1
        self._pulls.epoch += 1
        self._pulls.fetch_ahead()

    def end_day(self) -> None:
        """Waits until all workers have come to the end of the day, and rows have faded."""
        self._pulls.settle()
        self._pushes.flush()
        self.links.call_all(Kind.END_DAY)
        self._pulls.epoch += 1

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Parts of all tables, in the order in which they are to be loaded; other workers wait meanwhile."""
        self._pulls.settle()
        self._pushes.flush()
        self.links.call_all(Kind.HOLD)
        try:
            for name, joined in self._tables.items():
                for state in self._parts(joined, Flag.CHANGED_ONLY if changed_only else Flag.NONE):
                    yield name, state
        finally:
            self.links.call_all(Kind.LET_GO)

    def load(self, table: str, state: State) -> None:
        """Sends each server its rows."""
        joined = self._joined(table)
        self._pulls.settle()
        for piece in cut(state, PART_BYTES):
            numbers = []
            for shard, part in enumerate(split(piece, len(self.links))):
                head = np.array([joined.numbers[shard]], np.int32)
                numbers.append(self.links.ask(shard, Kind.LOAD, [head, *state_arrays(part)]))
            for _ in self.links.answers(numbers):
                pass
        self._pulls.epoch += 1

    def statistics(self) -> Mapping[str, Any]:
        """What each server holds and was asked, and how unevenly."""
        self._pushes.flush()
        shards: list[dict[str, Any]] = [{} for _ in self.links]
        for shard, frame in self.links.ask_all(Kind.STATISTICS):
            shards[shard] = read_json(frame.arrays()[0])
        asked = [facts["keys_pulled"] + facts["keys_pushed"] for facts in shards]
        received, sent = zip(*(link.bytes_moved for link in self.links), strict=True)
        return {
            "tables": self._by_table(shards, sum(received) + sum(sent)),
            "servers": shards,
            "skew": shard_skew(asked),
            "bytes_received": sum(received),
            "bytes_sent": sum(sent),
            "retries": sum(link.retries for link in self.links),
            "shared_memory": all(link.channel.in_memory for link in self.links),
        }

    def _by_table(self, shards: list[dict[str, Any]], moved: int) -> dict[str, Any]:
        """What moved is told of each table by the weights that were asked of it."""
        told = {name: _totals([facts["tables"][name] for facts in shards]) for name in self._tables}
        weights = {
            name: (facts["counts"]["pulled"] + facts["counts"]["pushed"]) * self._tables[name].spec.dim
            for name, facts in told.items()
        }
        total = sum(weights.values()) or 1
        return {
            name: {**facts, "moved_bytes": moved * weights[name] // total} for name, facts in told.items()
        }

    def close(self) -> None:
        """Waits until all pushes are confirmed, then leaves."""
        try:
            self._pushes.flush()
            self.links.call_all(Kind.BYE)
        finally:
            self.links.close()

    def _joined(self, table: str) -> Joined:
        if table not in self._tables:
            raise UnknownNameError("table", table, self._tables)
        return self._tables[table]

    def _parts(self, joined: Joined, flags: int) -> Iterator[State]:
        """First what tells that all begins anew, then rows server by server, last those who wait for a row."""
        heads: list[State] = []
        lasts: list[State] = []
        for shard in range(len(self.links)):
            number = np.array([joined.numbers[shard]], np.int32)
            first = self._state(shard, self.links.ask(shard, Kind.PART, [number], flags=flags))
            heads += [first] if first else []
        yield join(heads)
        for shard in range(len(self.links)):
            held = self._state(shard, self.links.ask(shard, Kind.PART))
            while held is not None:
                part = self._state(shard, self.links.ask(shard, Kind.PART))
                if part is None:
                    lasts.append(held)
                else:
                    yield held
                held = part
        yield join(lasts)

    def _state(self, shard: int, number: int) -> State | None:
        """A part of a table, if there is one more."""
        frame = self.links.answer(shard, number)
        state = None if frame.flags & Flag.LAST else state_of(frame.arrays())
        self.links[shard].release(frame)
        return state


def _totals(shards: list[dict[str, Any]]) -> dict[str, Any]:
    """One table over all servers."""
    totals: dict[str, Any] = {name: sum(facts[name] for facts in shards) for name in shards[0]}
    counts = {name: totals.pop(name) for name in _COUNTED}
    taken = totals["memory_bytes"] + totals["cold_bytes"]
    return {
        **totals,
        "counts": counts,
        "hit_rate": 1 - counts["missed"] / counts["pulled"] if counts["pulled"] else 1.0,
        "skew": counts["pushed"] / counts["pushed_distinct"] if counts["pushed_distinct"] else 1.0,
        "bytes_per_row": taken / totals["rows"] if totals["rows"] else 0.0,
    }


def _fitting(out: Floats | None, shape: tuple[int, int]) -> Floats:
    if out is None:
        return np.empty(shape, np.float32)
    if out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise InputError(f"rows are written to contiguous float32 of shape {shape}")
    return out
