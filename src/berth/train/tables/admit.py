"""Who gets a row at all: most keys of a click log are seen once and never again.

Keys that are not admitted yet read as zeros, and their gradients are dropped. What is known of them is one
number each, in an index of its own; it fades whenever the table is shrunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError
from berth.train.tables.hashing import ADMISSION_SALT, Keys, chances
from berth.train.tables.index import EMPTY, Index

Kind = Literal["count", "probability", "score"]

_MOST = 2**31 - 1
_THOUSANDTHS = 1000.0  # scores wait as whole numbers


@dataclass(frozen=True, slots=True)
class Admission:
    """A key is admitted once it was pulled `threshold` times, has that score, or with that probability."""

    kind: Kind
    threshold: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownNameError("rule of admission", self.kind, get_args(Kind))
        if not self.threshold >= 0 or (self.kind == "probability" and self.threshold > 1):
            raise InputError(f"no key can be admitted by {self.kind} {self.threshold}")


class Gate:
    """Those who wait for a row, and what is known of them."""

    def __init__(self, rule: Admission) -> None:
        self.rule = rule
        self.waiting = Index()

    def ask(self, keys: Keys, times: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether distinct keys without a row, each asked for so many times in this batch, get one."""
        if self.rule.kind == "probability":
            return chances(keys, ADMISSION_SALT) < self.rule.threshold
        if self.rule.kind == "count":
            known, needed = self._add(keys, times), self.rule.threshold
        else:
            known, needed = self._known(keys), self.rule.threshold * _THOUSANDTHS
        admitted = known >= needed
        self.waiting.remove(keys[admitted])
        return admitted

    def would_admit(self, keys: Keys) -> NDArray[np.bool_]:
        """Whether keys without a row would get one if they were asked for now; nothing is counted."""
        if self.rule.kind == "probability":
            return chances(keys, ADMISSION_SALT) < self.rule.threshold
        once = 1 if self.rule.kind == "count" else 0
        unit = 1.0 if self.rule.kind == "count" else _THOUSANDTHS
        return self._known(keys) + once >= self.rule.threshold * unit

    def see(self, keys: Keys, scores: NDArray[np.float32]) -> None:
        """Distinct keys without a row were shown, perhaps clicked."""
        if self.rule.kind == "score":
            self._add(keys, np.rint(scores * _THOUSANDTHS).astype(np.int64))

    def fade(self) -> None:
        """Forget half of what is known of those who wait, and those of whom nothing is left."""
        keys, known = self.waiting.entries()
        self.waiting = Index()
        left = known // 2
        self.waiting.put(keys[left > 0], left[left > 0])

    def load(self, keys: Keys, known: NDArray[np.int32]) -> None:
        """Replace all who wait."""
        self.waiting = Index()
        self.waiting.put(keys, known)

    def _known(self, keys: Keys) -> NDArray[np.int64]:
        known = self.waiting.find(keys)[0].astype(np.int64)
        known[known == EMPTY] = 0
        return known

    def _add(self, keys: Keys, amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        known = np.clip(self._known(keys) + amounts, 0, _MOST)
        self.waiting.put(keys, known.astype(np.int32))
        return known
