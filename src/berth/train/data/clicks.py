"""An endless stream of synthetic clicks, drawn from the seed and the example number.

An example has 26 slots with one id each, from vocabularies of 10 to a million ids with Zipf(1.1) popularity, and 13
dense features. Every id has a hidden weight; the logit of a click is their sum plus that of the weighted features. So
the true probability of every click is known, and with it the best possible AUC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined
from berth.train.data.batch import Batch, Share
from berth.train.metrics import best_auc
from berth.train.tables.hashing import GOLDEN, mix, salted, unit

SLOTS = 26
DENSE = 13
VOCABULARIES = np.unique(np.geomspace(10, 1_000_000, SLOTS).round().astype(np.int64))

_BIAS = -1.2
_ID_WEIGHT = 0.46
_DENSE_WEIGHT = 0.12
_HIDDEN = 0xC11C
_LABEL = 99
_SALT = 0x5EED
_FIRST = 10.0 * (1.0 - 1.5**-0.1) - 1.0  # start of the area of rank 1
_NEAR = 2.0 - (1.0 - 0.1 * (10.0 * (1.0 - 2.5**-0.1) - 2.0**-1.1)) ** -10  # accepted without evaluation

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@inlined
def _integral(x: float) -> float:
    """Return the integral of x ** -1.1 from 1."""
    return 10.0 * (1.0 - x**-0.1)


@inlined
def _inverse(area: float) -> float:
    """Return where that integral reaches `area`: a tenth power, without logarithms."""
    root = 1.0 - 0.1 * area
    square = root * root
    fourth = square * square
    return 1.0 / (fourth * fourth * square)


@inlined
def _zipf(word: np.uint64, values: float, area: float) -> float:
    """Return a rank from 1 to `values` by rejection-inversion (Hoermann and Derflinger 1996)."""
    while True:
        word = mix(word + GOLDEN)
        drawn = area + unit53(word) * (_FIRST - area)
        x = _inverse(drawn)
        rank = _nearest_rank(x, values)
        if _accepts(rank, x, drawn):
            return rank


@inlined
def _nearest_rank(x: float, values: float) -> float:
    """Return the rank from 1 to `values` next to x."""
    rank = max(np.floor(x + 0.5), 1.0)
    return rank if rank < values else values


@inlined
def _accepts(rank: float, x: float, drawn: float) -> bool:
    """Whether a rank is kept, by where its area was reached."""
    return rank - x <= _NEAR or drawn >= _integral(rank + 0.5) - rank**-1.1


@inlined
def unit53(word: np.uint64) -> float:
    """Return a number in [0, 1) from the upper 53 bits."""
    return np.float64(word >> np.uint64(11)) * 2.0**-53


@inlined
def _bell(word: np.uint64) -> float:
    """Return the sum of four 16-bit uniform numbers, scaled to mean 0 and variance 1."""
    low = np.uint64(0xFFFF)
    total = (
        (word & low) + (word >> np.uint64(16) & low) + (word >> np.uint64(32) & low) + (word >> np.uint64(48))
    )
    return (np.float64(total) - 131070.0) * (1.7320508075688772 / 65536.0)


@entry
def _draw(
    numbers: tuple[int, int, int],
    vocabularies: Doubles,
    areas: Doubles,
    keys: NDArray[np.int64],
    dense: Floats,
    probabilities: Doubles,
    labels: NDArray[np.int64],
) -> None:
    # One pass over all slots for each step of the work: the compiler makes vector instructions of these loops.
    seed, first, stride = numbers
    slots = keys.shape[1]
    words, drawn = np.empty(slots, np.uint64), np.empty(slots)
    x, weights = np.empty(slots), np.empty(slots)
    for row in range(len(keys)):
        stream = salted(first + row * stride, seed)
        for slot in range(slots):
            words[slot] = mix(mix(stream + np.uint64(slot) * GOLDEN) + GOLDEN)
        for slot in range(slots):
            drawn[slot] = areas[slot] + unit53(words[slot]) * (_FIRST - areas[slot])
            x[slot] = _inverse(drawn[slot])
        for slot in range(slots):
            rank = _nearest_rank(x[slot], vocabularies[slot])
            if not _accepts(rank, x[slot], drawn[slot]):
                rank = _zipf(words[slot], vocabularies[slot], areas[slot])
            keys[row, slot] = slot << 32 | int(rank)
        for slot in range(slots):
            weights[slot] = _ID_WEIGHT * (2.0 * unit(salted(keys[row, slot], _HIDDEN)) - 1.0)
        logit = _BIAS
        for weight in weights:
            logit += weight
        for column in range(dense.shape[1]):
            value = _bell(mix(stream + np.uint64(column + 32) * GOLDEN))
            dense[row, column] = np.float32(value)
            logit += value * (_DENSE_WEIGHT if column % 2 else -_DENSE_WEIGHT)
        probabilities[row] = 1.0 / (1.0 + np.exp(-logit))
        labels[row] = unit53(mix(stream + np.uint64(_LABEL) * GOLDEN)) < probabilities[row]


class ClickStream:
    """The built-in data; examples are generated on demand."""

    random_access = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._vocabularies = VOCABULARIES.astype(np.float64)
        self._areas = 10.0 * (1.0 - (self._vocabularies + 0.5) ** -0.1)

    def describe(self) -> Mapping[str, Any]:
        """Return the seed."""
        return {"kind": "clicks", "seed": self.seed}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Yield batches without end; the seed of the run is not used."""
        del seed
        rows = share.of(batch)
        while True:
            keys, dense, _, labels = self.draw(step * batch + share.worker, rows, share.workers)
            inputs = {"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}
            yield Batch(inputs, torch.from_numpy(labels), rows, batch)
            step += 1

    def draw(
        self, first: int, rows: int, stride: int = 1
    ) -> tuple[NDArray[np.int64], Floats, Doubles, NDArray[np.int64]]:
        """Return keys, dense features, true click probabilities and clicks of examples first, first + stride, ..."""
        keys, dense = np.empty((rows, SLOTS), np.int64), np.empty((rows, DENSE), np.float32)
        probabilities, labels = np.empty(rows), np.empty(rows, np.int64)
        numbers = (self.seed ^ _SALT, first, stride)
        _draw(numbers, self._vocabularies, self._areas, keys, dense, probabilities, labels)
        return keys, dense, probabilities, labels

    def expected_keys(self, examples: int) -> int:
        """Return the expected number of unique keys of this many examples."""
        total = 0.0
        for values in VOCABULARIES:
            law = np.arange(1, values + 1, dtype=np.float64) ** -1.1
            total += float(-np.expm1(examples * np.log1p(-np.minimum(law / law.sum(), 1 - 1e-12))).sum())
        return round(total)

    def best_auc(self, examples: int = 1 << 16) -> float:
        """Return the expected AUC of the true probabilities."""
        return best_auc(self.draw(0, examples)[2])

    def position(self, step: int) -> Mapping[str, Any]:
        """Return nothing: any step can be generated."""
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Do nothing."""
