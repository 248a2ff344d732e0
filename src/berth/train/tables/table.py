"""A sparse table: pull rows by key, push gradients for them.

A row is made when it is first touched. A push merges the gradients of the same key and lets each row learn
once.
"""

from __future__ import annotations

import numpy as np

from berth.errors import InputError
from berth.train.tables.hashing import Keys
from berth.train.tables.index import EMPTY, Places
from berth.train.tables.initialise import Floats, Initialiser, fill
from berth.train.tables.merge import distinct, summed
from berth.train.tables.optimise import Optimiser, apply
from berth.train.tables.statistics import Counts, Statistics
from berth.train.tables.store import Store, as_keys


class Table:
    """Rows of `dim` weights by 64-bit key."""

    def __init__(
        self, dim: int, *, optimiser: Optimiser | None = None, initialiser: Initialiser | None = None
    ) -> None:
        if dim < 1:
            raise InputError(f"a row has at least one weight, not {dim}")
        self.dim = dim
        self.optimiser = optimiser or Optimiser()
        self.initialiser = initialiser or Initialiser()
        self.first_state = self.optimiser.first_state(dim)
        self.store = Store(dim + len(self.first_state))
        self.counts = Counts()
        self._numbers = self.optimiser.numbers()

    def __len__(self) -> int:
        return self.store.index.count

    def pull(self, keys: object) -> Floats:
        """The weights of each key, [n, dim]; keys not seen before get their row."""
        asked = as_keys(keys)
        self.counts.pulled += len(asked)
        return self.store.rows.read(self._places(asked), 0, self.dim)

    def push(self, keys: object, gradients: Floats) -> None:
        """Let the row of each key learn from its gradient, [n, dim]."""
        asked = as_keys(keys)
        slopes = self._checked(asked, gradients)
        unique, inverse = distinct(asked)
        self.counts.pushed += len(asked)
        self.counts.pushed_distinct += len(unique)
        if len(unique) < len(asked):
            slopes = summed(inverse, len(unique), slopes)
        places = self._places(unique)
        rows = self.store.rows
        apply(rows.data, rows.width, self.dim, places, slopes.reshape(-1), self.optimiser.code, self._numbers)

    def delete(self, keys: object) -> int:
        """Forget the rows of keys; how many there were."""
        removed = self.store.remove(as_keys(keys))
        self.counts.removed += removed
        return removed

    def statistics(self) -> Statistics:
        """The table at this moment."""
        store = self.store
        return Statistics(len(self), store.rows.count, store.bytes, 0, self.counts, 0, 0)

    def _places(self, keys: Keys) -> Places:
        places, missing = self.store.locate(keys)
        if not missing:
            return places
        absent = np.flatnonzero(places == EMPTY)
        fresh, inverse = distinct(keys[absent])
        places[absent] = self._create(fresh)[inverse]
        return places

    def _create(self, keys: Keys) -> Places:
        places, rows = self.store.create(keys), self.store.rows
        fill(rows.data, rows.width, self.dim, keys, places, self.initialiser, self.first_state)
        self.counts.created += len(keys)
        return places

    def _checked(self, keys: Keys, gradients: Floats) -> Floats:
        if gradients.shape != (len(keys), self.dim):
            raise InputError(
                f"{len(keys)} keys need gradients of shape ({len(keys)}, {self.dim}), not {gradients.shape}"
            )
        return np.ascontiguousarray(gradients, np.float32)
