"""Random streams by seed and purpose: draws for one purpose never depend on draws for another.

The number of a purpose never changes, so that a seed always gives the same draws. There are two kinds: generators
for sequential draws, and numbers by index for random access. Both use integer arithmetic, the same on every CPU.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray

Purpose = Literal["arrivals", "sizes", "durations", "users", "failures", "resampling"]
IndexedPurpose = Literal["models", "estimate errors", "preemptible"]

_GENERATORS: dict[Purpose, int] = {
    "arrivals": 0,
    "sizes": 1,
    "durations": 2,
    "users": 3,
    "failures": 4,
    "resampling": 5,
}
_INDEXED: dict[IndexedPurpose, int] = {
    "models": 0,
    "estimate errors": 0xD1B54A32D192ED03,
    "preemptible": 0x8CB92BA72F3D8DD7,
}  # models came first


def stream(seed: int, purpose: Purpose, *part: int) -> np.random.Generator:
    """A generator for one purpose, or for one part of it (the failures of machine 3)."""
    child = np.random.SeedSequence(seed, spawn_key=(_GENERATORS[purpose], *part))
    return np.random.Generator(np.random.PCG64(child))


def uniforms(seed: int, purpose: IndexedPurpose, count: int, first: int = 0) -> FloatArray:
    """A number in [0, 1) for each index from `first` on, from seed, purpose and index alone (splitmix64)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is what is wanted
        start = _scrambled(np.asarray([seed % 2**64], dtype=np.uint64))
        if number := _INDEXED[purpose]:
            start = _scrambled(start ^ np.uint64(number))
        index = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        bits = _scrambled(start + index * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scrambled(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
