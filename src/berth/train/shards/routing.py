"""Routing of a batch's keys to servers: each unique key once, grouped by shard, and the mapping back.

Unique keys are in order of first occurrence, as in `Table.push`, and gradients are summed in batch order, so the result
does not depend on the number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from berth.native.kernels import entry
from berth.train.tables.dedup import add_rows, same_keys, spread_rows, unique_keys
from berth.train.tables.hashing import SHARD_SALT, Keys, salted
from berth.train.tables.initialise import Floats

Numbers = npt.NDArray[np.int32]


@entry
def _group_by_shard(
    found: Keys, inverse: Numbers, shards: int, sent: Keys, bounds: Numbers, spans: Numbers, mapping: Numbers
) -> None:
    """Counting sort of keys and their occurrences by shard; `mapping` is [2, n]: batch position, key in shard."""
    owner = np.empty(len(found), np.int32)
    local = np.empty(len(found), np.int32)
    for number in range(len(found)):
        shard = np.int32(salted(found[number], SHARD_SALT) % np.uint64(shards))  # as `shard_of`
        owner[number] = shard
        local[number] = bounds[shard + 1]
        bounds[shard + 1] += 1
    for number in range(len(inverse)):
        spans[owner[inverse[number]] + 1] += 1
    for part in range(shards):
        bounds[part + 1] += bounds[part]
        spans[part + 1] += spans[part]
    for number in range(len(found)):
        sent[bounds[owner[number]] + local[number]] = found[number]
    at = spans[:shards].copy()
    for number in range(len(inverse)):
        key = inverse[number]
        slot = at[owner[key]]
        at[owner[key]] += 1
        mapping[0, slot] = number
        mapping[1, slot] = local[key]


@entry
def _spread_to(rows: Floats, width: int, where: Numbers, which: Numbers, out: Floats) -> None:
    wide = np.uint64(width)  # unsigned: no sign checks, so inner loops vectorise
    for number in range(len(which)):
        source, target = np.uint64(which[number]) * wide, np.uint64(where[number]) * wide
        for column in range(wide):
            out[target + column] = rows[source + column]


@entry
def _add_from(values: Floats, width: int, where: Numbers, which: Numbers, out: Floats) -> None:
    next_new, wide = 0, np.uint64(width)
    for number in range(len(which)):
        target, source = np.uint64(which[number]) * wide, np.uint64(where[number]) * wide
        if which[number] == next_new:
            next_new += 1
            for column in range(wide):
                out[target + column] = np.float32(0) + values[source + column]
        else:
            for column in range(wide):
                out[target + column] += values[source + column]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The keys of a batch, grouped by shard."""

    keys: Keys  # as requested
    sent: Keys  # unique, by shard
    bounds: list[int]  # of each shard in `sent`
    spans: list[int]  # of each shard in `where` and `which`
    where: Numbers | None  # positions in the batch, by shard; None for one shard (batch order)
    which: Numbers  # index of the key within its shard

    @property
    def shards(self) -> int:
        """Return the number of servers."""
        return len(self.bounds) - 1

    def matches(self, keys: Keys) -> bool:
        """Return whether this is the route of these keys."""
        return len(keys) == len(self.keys) and bool(same_keys(self.keys, keys))

    def keys_of(self, shard: int) -> Keys:
        """Return the unique keys of a server."""
        return self.sent[self.bounds[shard] : self.bounds[shard + 1]]

    @property
    def counts(self) -> list[int]:
        """Return the number of unique keys of each server."""
        return [after - first for first, after in pairwise(self.bounds)]

    def positions(self) -> Numbers:
        """Return for each key of the batch its index in `sent`."""
        if self.where is None:
            return self.which
        positions = np.empty(len(self.keys), np.int32)
        for shard, first in enumerate(self.bounds[:-1]):
            span = slice(self.spans[shard], self.spans[shard + 1])
            positions[self.where[span]] = self.which[span] + first
        return positions

    def counts_of(self, shard: int) -> Numbers:
        """Return how often each of them occurs in the batch."""
        which = self.which[self.spans[shard] : self.spans[shard + 1]]
        return np.bincount(which, minlength=len(self.keys_of(shard))).astype(np.int32)

    def spread(self, shard: int, rows: Floats, out: Floats) -> None:
        """Scatter a server's rows to the positions of their keys in the batch."""
        width, span = out.shape[1], slice(self.spans[shard], self.spans[shard + 1])
        if self.where is None:
            spread_rows(rows.reshape(-1), width, self.which, out.reshape(-1))
        else:
            _spread_to(rows.reshape(-1), width, self.where[span], self.which[span], out.reshape(-1))

    def add(self, shard: int, values: Floats, out: Floats) -> None:
        """Sum the values of each key of one server; a single value is kept bit for bit."""
        width, span = values.shape[1], slice(self.spans[shard], self.spans[shard + 1])
        if len(self.sent) == len(self.keys):
            out[...] = values if self.where is None else values[self.where[span]]
        elif self.where is None:
            add_rows(values.reshape(-1), width, self.which, out.reshape(-1))
        else:
            _add_from(values.reshape(-1), width, self.where[span], self.which[span], out.reshape(-1))


def make_route(keys: Keys, shards: int) -> Route:
    """Return the route of a batch; the keys are copied."""
    keys = keys.copy()
    found, inverse = unique_keys(keys)
    if shards == 1:
        return Route(keys, found, [0, len(found)], [0, len(keys)], None, inverse)
    sent, mapping = np.empty(len(found), np.int64), np.empty((2, len(keys)), np.int32)
    bounds, spans = np.zeros(shards + 1, np.int32), np.zeros(shards + 1, np.int32)
    _group_by_shard(found, inverse, shards, sent, bounds, spans, mapping)
    return Route(keys, sent, bounds.tolist(), spans.tolist(), mapping[0], mapping[1])
