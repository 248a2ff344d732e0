"""Two tables as one: a narrow row for every key, a wide one only for keys that have proved their worth.

Most rows of a click model never earn their wide embedding; they take no memory for it. It reads as zeros until
the push that lifts the row's score to the life cycle's `wide_score`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from berth.errors import InputError
from berth.train.tables.admit import Admission
from berth.train.tables.hashing import Keys
from berth.train.tables.initialise import Floats, Initialiser
from berth.train.tables.life import Life
from berth.train.tables.optimise import Optimiser
from berth.train.tables.state import State
from berth.train.tables.store import as_keys
from berth.train.tables.table import Table

_WIDE_SEED = 0x51DE
_NARROW_SHARE = 4  # of a budget, narrow rows and their index get one part in so many


class CtrTable:
    """Rows of `dim` weights, of which all keys have the first `narrow`."""

    def __init__(
        self,
        dim: int,
        *,
        narrow: int = 1,
        optimiser: Optimiser | None = None,
        initialiser: Initialiser | None = None,
        admission: Admission | None = None,
        life: Life | None = None,
        memory_bytes: int | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if not 0 < narrow < dim:
            raise InputError(f"of {dim} weights, 1 to {dim - 1} can be narrow, not {narrow}")
        first = initialiser or Initialiser()
        other = Initialiser(first.kind, first.scale, first.seed ^ _WIDE_SEED)
        self.life = life or Life()
        self.dim, self.split_at = dim, narrow
        little = memory_bytes and memory_bytes // _NARROW_SHARE
        much = memory_bytes and memory_bytes - memory_bytes // _NARROW_SHARE
        self.narrow = Table(
            narrow,
            optimiser=optimiser,
            initialiser=first,
            admission=admission,
            life=self.life,
            memory_bytes=little,
            folder=folder,
        )
        self.wide = Table(
            dim - narrow, optimiser=optimiser, initialiser=other, memory_bytes=much, folder=folder
        )

    def __len__(self) -> int:
        return len(self.narrow)

    def pull(self, keys: object) -> Floats:
        """The weights of each key, [n, dim]."""
        asked = as_keys(keys)
        return np.concatenate([self.narrow.pull(asked), self.wide.pull(asked, create=False)], axis=1)

    def push(
        self, keys: object, gradients: Floats, shows: Floats | None = None, clicks: Floats | None = None
    ) -> None:
        """As `Table.push`; then those whose score has become high enough get their wide row."""
        asked = as_keys(keys)
        self.narrow.push(asked, gradients[:, : self.split_at], shows, clicks)
        self.wide.push(asked, gradients[:, self.split_at :], create=False)
        self.wide.touch(asked[self.narrow.scores(asked) >= self.life.wide_score])

    def delete(self, keys: object) -> int:
        """Forget the rows of keys; how many there were."""
        self.wide.delete(keys)
        return self.narrow.delete(keys)

    def end_day(self) -> Keys:
        """As `Table.end_day`: wide rows die with the narrow ones."""
        gone = self.narrow.end_day()
        self.wide.delete(gone)
        return gone

    def save(self, *, changed_only: bool = False) -> tuple[State, State]:
        """The states of both tables."""
        return self.narrow.save(changed_only=changed_only), self.wide.save(changed_only=changed_only)

    def load(self, states: tuple[State, State]) -> None:
        """Put saved states into both tables."""
        self.narrow.load(states[0])
        self.wide.load(states[1])
