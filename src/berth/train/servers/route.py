"""The way of a batch's keys to the servers: each distinct key once, ordered by shard, and the way back.

Distinct keys stand in the order in which they are first seen, as `Table.push` has them, and gradients are added
in the order of the batch. So what a server is told does not depend on how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from berth.compile import entry
from berth.train.tables.hashing import SHARD_SALT, Keys, salted
from berth.train.tables.initialise import Floats
from berth.train.tables.merge import add_rows, distinct, same_keys, spread_rows

Numbers = npt.NDArray[np.int32]


@entry
def _by_shard(
    found: Keys, inverse: Numbers, shards: int, sent: Keys, bounds: Numbers, spans: Numbers, ways: Numbers
) -> None:
    """Counting sort of keys and of their occurrences by shard; `ways` is [2, n]: where, and which key."""
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
        ways[0, slot] = number
        ways[1, slot] = local[key]


@entry
def _spread_to(rows: Floats, width: int, where: Numbers, which: Numbers, out: Floats) -> None:
    wide = np.uint64(width)  # unsigned: inner loops need no look at signs, and run in vectors
    for number in range(len(which)):
        source, target = np.uint64(which[number]) * wide, np.uint64(where[number]) * wide
        for column in range(wide):
            out[target + column] = rows[source + column]


@entry
def _add_from(values: Floats, width: int, where: Numbers, which: Numbers, out: Floats) -> None:
    seen, wide = 0, np.uint64(width)
    for number in range(len(which)):
        target, source = np.uint64(which[number]) * wide, np.uint64(where[number]) * wide
        if which[number] == seen:
            seen += 1
            for column in range(wide):
                out[target + column] = np.float32(0) + values[source + column]
        else:
            for column in range(wide):
                out[target + column] += values[source + column]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A batch of keys, ready to travel."""

    keys: Keys  # as they were asked for
    sent: Keys  # distinct, by shard
    bounds: list[int]  # of each shard in `sent`
    spans: list[int]  # of each shard in `where` and `which`
    where: Numbers | None  # positions in the batch by shard; none for one shard: as they come
    which: Numbers  # number of the key within its shard

    @property
    def shards(self) -> int:
        """How many servers there are."""
        return len(self.bounds) - 1

    def is_of(self, keys: Keys) -> bool:
        """Whether it is the way of these keys."""
        return len(keys) == len(self.keys) and bool(same_keys(self.keys, keys))

    def keys_of(self, shard: int) -> Keys:
        """The distinct keys that a server is asked for."""
        return self.sent[self.bounds[shard] : self.bounds[shard + 1]]

    def times_of(self, shard: int) -> Numbers:
        """How often each of them stands in the batch."""
        which = self.which[self.spans[shard] : self.spans[shard + 1]]
        return np.bincount(which, minlength=len(self.keys_of(shard))).astype(np.int32)

    def spread(self, shard: int, rows: Floats, out: Floats) -> None:
        """Write a server's rows wherever the batch has their keys."""
        width, span = out.shape[1], slice(self.spans[shard], self.spans[shard + 1])
        if self.where is None:
            spread_rows(rows.reshape(-1), width, self.which, out.reshape(-1))
        else:
            _spread_to(rows.reshape(-1), width, self.where[span], self.which[span], out.reshape(-1))

    def add(self, shard: int, values: Floats, out: Floats) -> None:
        """The sums of values of the same key, for one server; alone, a value stays as it is to the last bit."""
        width, span = values.shape[1], slice(self.spans[shard], self.spans[shard + 1])
        if len(self.sent) == len(self.keys):
            out[...] = values if self.where is None else values[self.where[span]]
        elif self.where is None:
            add_rows(values.reshape(-1), width, self.which, out.reshape(-1))
        else:
            _add_from(values.reshape(-1), width, self.where[span], self.which[span], out.reshape(-1))


def route(keys: Keys, shards: int) -> Route:
    """Find the way of a batch; the keys are copied, so the caller may change them."""
    keys = keys.copy()
    found, inverse = distinct(keys)
    if shards == 1:
        return Route(keys, found, [0, len(found)], [0, len(keys)], None, inverse)
    sent, ways = np.empty(len(found), np.int64), np.empty((2, len(keys)), np.int32)
    bounds, spans = np.zeros(shards + 1, np.int32), np.zeros(shards + 1, np.int32)
    _by_shard(found, inverse, shards, sent, bounds, spans, ways)
    return Route(keys, sent, bounds.tolist(), spans.tolist(), ways[0], ways[1])
