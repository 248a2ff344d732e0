"""Hashes of keys: position in the index, shard, and random numbers.

The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit words, so two keys never
collide. Independent uses have different salts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined

Keys = NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SHARD_SALT = 0x5AD0
ADMISSION_SALT = 0xAD01

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@inlined
def mix(word: np.uint64) -> np.uint64:
    """Return a word whose every bit depends on every bit of the input."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


@inlined
def salted(key: int, salt: int) -> np.uint64:
    """Return the hash of a key; hashes under different salts are independent."""
    return mix(mix(np.uint64(key)) ^ (np.uint64(salt) + np.uint64(1)) * GOLDEN)


@inlined
def unit(word: np.uint64) -> float:
    """Return a number in [0, 1) from the upper 24 bits, exact in single precision."""
    return np.float64(word >> np.uint64(40)) * 2.0**-24


@entry
def _shards(keys: Keys, shards: int, out: NDArray[np.int32]) -> None:
    for at in range(len(keys)):
        out[at] = np.int32(salted(keys[at], SHARD_SALT) % np.uint64(shards))


def shard_of(keys: Keys, shards: int) -> NDArray[np.int32]:
    """Return the shard of each key."""
    out = np.empty(len(keys), np.int32)
    _shards(keys, shards, out)
    return out


@entry
def _uniform(keys: Keys, salt: int, out: NDArray[np.float32]) -> None:
    for at in range(len(keys)):
        out[at] = unit(salted(keys[at], salt))


def uniform(keys: Keys, salt: int) -> NDArray[np.float32]:
    """Return a reproducible number in [0, 1) for each key."""
    out = np.empty(len(keys), np.float32)
    _uniform(keys, salt, out)
    return out
