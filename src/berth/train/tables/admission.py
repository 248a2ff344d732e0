"""Admission of keys: most keys of a click log occur once, and should not get a row.

Keys that are not admitted read as zeros, and their gradients are dropped. Each has one counter in a separate index;
it is halved at the end of a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError
from berth.train.tables.hashing import ADMISSION_SALT, Keys, uniform
from berth.train.tables.index import EMPTY, Index

Kind = Literal["count", "probability", "score"]

_MAX_COUNT = 2**31 - 1
_THOUSANDTHS = 1000.0  # scores are stored as integers


@dataclass(frozen=True, slots=True)
class Admission:
    """A key is admitted once it was pulled `threshold` times, has that score, or with that probability."""

    kind: Kind
    threshold: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownNameError("rule of admission", self.kind, get_args(Kind))
        if not self.threshold >= 0 or (self.kind == "probability" and self.threshold > 1):
            raise InputError(f"invalid threshold for admission by {self.kind}: {self.threshold}")


class AdmissionFilter:
    """The keys pending admission, and their counters."""

    def __init__(self, rule: Admission) -> None:
        self.rule = rule
        self.pending = Index()

    def admit(self, keys: Keys, counts_in_batch: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the unique keys without a row get one; each occurs `counts_in_batch` times in this batch."""
        if self.rule.kind == "probability":
            return uniform(keys, ADMISSION_SALT) < self.rule.threshold
        if self.rule.kind == "count":
            counts, needed = self._add(keys, counts_in_batch), self.rule.threshold
        else:
            counts, needed = self._counts(keys), self.rule.threshold * _THOUSANDTHS
        admitted = counts >= needed
        self.pending.remove(keys[admitted])
        return admitted

    def would_admit(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which keys without a row would get one on the next pull; counts nothing."""
        if self.rule.kind == "probability":
            return uniform(keys, ADMISSION_SALT) < self.rule.threshold
        once = 1 if self.rule.kind == "count" else 0
        unit = 1.0 if self.rule.kind == "count" else _THOUSANDTHS
        return self._counts(keys) + once >= self.rule.threshold * unit

    def record_scores(self, keys: Keys, scores: NDArray[np.float32]) -> None:
        """Add scores of unique keys without a row."""
        if self.rule.kind == "score":
            self._add(keys, np.rint(scores * _THOUSANDTHS).astype(np.int64))

    def decay(self) -> None:
        """Halve all counters, and drop those that reach zero."""
        keys, counts = self.pending.entries()
        self.pending = Index()
        remaining = counts // 2
        self.pending.put(keys[remaining > 0], remaining[remaining > 0])

    def load(self, keys: Keys, counts: NDArray[np.int32]) -> None:
        """Replace all pending keys."""
        self.pending = Index()
        self.pending.put(keys, counts)

    def _counts(self, keys: Keys) -> NDArray[np.int64]:
        counts = self.pending.find(keys)[0].astype(np.int64)
        counts[counts == EMPTY] = 0
        return counts

    def _add(self, keys: Keys, amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        counts = np.clip(self._counts(keys) + amounts, 0, _MAX_COUNT)
        self.pending.put(keys, counts.astype(np.int32))
        return counts
