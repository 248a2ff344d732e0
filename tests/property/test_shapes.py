"""Shapes of gangs over machines, against every way there is to split them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from berth.schedule import balance

pytestmark = pytest.mark.slow


@njit
def best_shape(free, need):  # only compiled code can call a kernel
    return balance.best_shape(free, need)


@njit
def shares(free, need):
    return balance.balanced_shares(free, need)


FREE = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def splits(free, need):
    """All ways of taking a number of devices."""
    ways = itertools.product(*(range(count + 1) for count in free))
    return [way for way in ways if sum(way) == need]


def thinness_of_split(way):
    taken = [count for count in way if count]
    return (len(taken) - 1) / (len(taken) * min(taken))


@given(FREE, st.integers(1, 12))
def test_the_best_shape_is_the_least_thin_of_all_splits(free, need):
    found, _, _ = best_shape(np.array(free, np.int64), need)
    ways = splits(free, need)
    assert found == (min(map(thinness_of_split, ways)) if ways else 2.0)


@given(FREE, st.integers(1, 12))
def test_the_devices_taken_have_that_shape(free, need):
    if sum(free) < need:
        return
    taken = shares(np.array(free, np.int64), need)
    assert taken.sum() == need
    assert (taken <= free).all()
    assert thinness_of_split(taken.tolist()) == best_shape(np.array(free, np.int64), need)[0]
