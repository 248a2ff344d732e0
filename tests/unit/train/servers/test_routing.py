"""A batch's way to the servers and back: each distinct key once, to its shard, in the order of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from berth.train.servers.shard import Shard
from berth.train.shards.routing import make_route
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, Table, sgd, shard_of

BATCHES = {
    "empty": [],
    "one": [7],
    "all the same": [7] * 5,
    "all different": list(range(-9, 20)),
    "some often": [5, 3, 5, 2**63 - 1, 3, -(2**63), 5, 0, 3],
}


def first_seen(keys):
    return list(dict.fromkeys(keys))


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("name", BATCHES)
def test_each_distinct_key_goes_once_to_its_shard_in_the_order_it_is_first_seen(name, shards):
    keys = BATCHES[name]
    route = make_route(np.array(keys, np.int64), shards)
    assert route.shards == shards
    assert route.matches(np.array(keys, np.int64))
    assert not route.matches(np.array([*keys, 1], np.int64))
    for shard in range(shards):
        mine = [key for key in first_seen(keys) if shard_of(np.array([key]), shards)[0] == shard]
        assert route.keys_of(shard).tolist() == mine
        assert route.counts_of(shard).tolist() == [keys.count(key) for key in mine]


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("name", BATCHES)
def test_rows_come_to_every_place_of_their_key_and_gradients_are_summed_in_order(name, shards):
    keys = BATCHES[name]
    route, width = make_route(np.array(keys, np.int64), shards), 3
    values = np.random.default_rng(0).standard_normal((len(keys), width)).astype(np.float32)
    rows, sums = np.full((len(keys), width), np.nan, np.float32), {}
    for shard in range(shards):
        mine = route.keys_of(shard)
        received = (
            np.stack([_row(key) for key in mine.tolist()]) if len(mine) else np.empty((0, width), np.float32)
        )
        route.spread(shard, received, rows)
        out = np.full((len(mine), width), np.nan, np.float32)
        route.add(shard, values, out)
        sums |= dict(zip(mine.tolist(), out, strict=True))
    for key, row in zip(keys, rows, strict=True):
        assert (row == _row(key)).all()
    for key in set(keys):
        expected = np.zeros(width, np.float32)
        for other, value in zip(keys, values, strict=True):
            expected = expected + value if other == key else expected
        assert (sums[key] == expected).all()


def _row(key: int) -> np.ndarray:
    return np.array([key % 100, key % 7, 1], np.float32)


def test_the_way_stays_that_of_the_keys_it_was_made_for():
    keys = np.array([1, 2, 1])
    route = make_route(keys, 2)
    keys[0] = 9
    assert route.matches(np.array([1, 2, 1]))
    assert not route.matches(keys)


def test_a_shard_merges_its_share_of_what_a_worker_has_learned_and_saves_it_as_changed():
    shard = Shard()
    number = shard.open([TableSpec("rows", 2, sgd(), Initialiser())])[0]
    first = Table(2).pull([1, 2])
    table = shard.table(number)
    table.pull([1])
    table.save()
    shard.merge(number, np.array([1, 2]), np.array([[4, 8], [2, 2]], np.float32), None, 0.5)
    assert np.allclose(table.pull([1, 2]), first + np.array([[2, 4], [1, 1]], np.float32))
    assert table.save(changed_only=True).keys.tolist() == [1, 2]
    with pytest.raises(ValueError, match="can't be merged"):
        shard.merge(number, np.array([1]), np.zeros((1, 3), np.float32), None, 1.0)
