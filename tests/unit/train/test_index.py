"""The index: every 64-bit key finds its own place, whatever was put and removed before."""

from __future__ import annotations

import numpy as np
import pytest

from berth.train.tables.hashing import shard_of, uniform
from berth.train.tables.index import EMPTY, MAX_ENTRIES, Index

EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63), EMPTY, 2**32, -(2**32)])


def numbers(count):
    return np.arange(count, dtype=np.int32)


def test_an_empty_index_knows_no_key():
    places, missing, cold = Index().find(EXTREMES)
    assert (places == EMPTY).all()
    assert (missing, cold) == (len(EXTREMES), 0)


def test_zero_minus_one_and_the_extremes_are_keys_like_any_other():
    index, keys = Index(), np.unique(EXTREMES)
    index.put(keys, numbers(len(keys)))
    assert index.find(keys)[0].tolist() == list(range(len(keys)))
    assert index.remove(keys[:3]).tolist() == [0, 1, 2]
    assert index.find(keys)[0].tolist() == [EMPTY] * 3 + list(range(3, len(keys)))


def test_growing_loses_no_key():
    index, keys = Index(), np.arange(-5000, 5000) * 2**40
    for part in np.array_split(np.arange(len(keys)), 37):
        index.put(keys[part], part.astype(np.int32))
    assert index.count == len(keys)
    assert (index.find(keys)[0] == numbers(len(keys))).all()
    assert len(index.places) * 0.75 >= len(keys)


def test_removing_leaves_the_index_as_if_the_keys_had_never_been_there():
    """Without tombstones: every key that is left is reached from its home over taken entries only."""
    keys = np.random.default_rng(1).permutation(40)
    index, fresh = Index(), Index()
    index.put(keys, keys.astype(np.int32))
    index.remove(keys[:25])
    fresh.put(keys[25:], keys[25:].astype(np.int32))
    assert (index.places != EMPTY).sum() == 15 == index.count
    assert index.find(keys)[0].tolist() == [EMPTY] * 25 + keys[25:].tolist()
    assert sorted(np.flatnonzero(index.places != EMPTY)) == sorted(np.flatnonzero(fresh.places != EMPTY))


def test_putting_a_known_key_moves_it_and_counts_it_once():
    index = Index()
    index.put(np.array([7, 7]), np.array([1, 2], np.int32))
    assert index.count == 1
    assert index.find(np.array([7]))[0].tolist() == [2]


def test_cold_places_are_counted():
    index = Index()
    index.put(np.array([1, 2, 3]), np.array([-2, 5, -9], np.int32))
    places, missing, cold = index.find(np.array([1, 2, 3, 4]))
    assert places.tolist() == [-2, 5, -9, EMPTY]
    assert (missing, cold) == (1, 2)


def test_more_keys_than_places_can_name_are_refused():
    with pytest.raises(ValueError, match="use more shards"):
        Index().entries_for(MAX_ENTRIES + 1)


def test_shards_are_even_and_independent_of_where_a_key_lives():
    keys = np.arange(60_000)
    shards = shard_of(keys, 3)
    assert np.abs(np.bincount(shards) / 20_000 - 1).max() < 0.02
    assert (shard_of(keys[::-1].copy(), 3)[::-1] == shards).all()


def test_chances_are_uniform_and_differ_by_salt():
    keys = np.arange(50_000)
    first, second = uniform(keys, 1), uniform(keys, 2)
    assert abs(first.mean() - 0.5) < 0.01
    assert 0 <= first.min() < first.max() < 1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
