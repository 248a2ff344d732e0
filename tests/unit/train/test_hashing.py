"""Numbers made from keys: rows that are saved and sent live where these say, so they must never change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from berth.train.tables.hashing import GOLDEN, shard_of, uniform
from berth.train.tables.initialise import Initialiser, fill_weights

MASK = 2**64 - 1
KEYS = np.array([0, 1, 2, 12345, -1, -(2**63), 2**63 - 1], np.int64)


def mix(word: int) -> int:
    """The finaliser of SplitMix64, in plain integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def salted(key: int, salt: int) -> int:
    return mix(mix(key & MASK) ^ ((salt + 1) * int(GOLDEN)) & MASK)


def test_the_plain_finaliser_is_the_published_one():
    # The first numbers of SplitMix64 from seed 0, as its authors' program prints them.
    first = [mix((step * int(GOLDEN)) & MASK) for step in (1, 2, 3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("shards", [1, 3, 8])
def test_the_shard_of_a_key_is_the_rest_of_its_salted_word(shards):
    assert shard_of(KEYS, shards).tolist() == [salted(int(key), 0x5AD0) % shards for key in KEYS]


def test_chances_are_the_upper_bits_of_the_salted_word():
    assert uniform(KEYS, 7).tolist() == [(salted(int(key), 7) >> 40) / 2**24 for key in KEYS]


@pytest.mark.parametrize("seed", [0, 5])
def test_first_values_follow_from_key_seed_and_column(seed):
    dim, scale = 3, 0.5
    out = np.zeros((len(KEYS), dim), np.float32)
    fill_weights(out, np.arange(len(KEYS), dtype=np.int32), KEYS, Initialiser("uniform", scale, seed))
    for row, key in zip(out.tolist(), KEYS.tolist(), strict=True):
        words = [mix((salted(key, seed) + column * int(GOLDEN)) & MASK) for column in range(dim)]
        assert row == [np.float32(scale * (2.0 * (word >> 40) / 2**24 - 1.0)) for word in words]


def test_normal_first_values_are_made_of_two_even_ones():
    out = np.zeros((len(KEYS), 2), np.float32)
    fill_weights(out, np.arange(len(KEYS), dtype=np.int32), KEYS, Initialiser("normal", 0.5, 3))
    for row, key in zip(out.tolist(), KEYS.tolist(), strict=True):
        words = [mix((salted(key, 3) + column * int(GOLDEN)) & MASK) for column in range(2)]
        radii = [math.sqrt(-2.0 * math.log(1.0 - (word >> 40) / 2**24)) for word in words]
        turns = [(mix(word ^ MASK) >> 40) / 2**24 for word in words]
        wanted = [
            0.5 * radius * math.cos(2.0 * math.pi * turn) for radius, turn in zip(radii, turns, strict=True)
        ]
        assert row == pytest.approx(wanted, rel=1e-6, abs=1e-7)
