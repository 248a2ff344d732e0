"""What a worker knows of tables: the seam between training and wherever the rows live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from berth.train.tables import Admission, Initialiser, Life, Optimiser, State

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of a model: every server holds a shard of it."""

    name: str
    dim: int
    optimiser: Optimiser
    initialiser: Initialiser
    admission: Admission | None = None
    life: Life | None = None

    @property
    def counts_pulls(self) -> bool:
        """Whether it matters how often a key is pulled."""
        return self.admission is not None and self.admission.kind == "count"

    @property
    def counts_clicks(self) -> bool:
        """Whether its rows live, or are admitted, by what is shown and clicked."""
        return self.life is not None or (self.admission is not None and self.admission.kind == "score")


class SparseStore(Protocol):
    """Rows by key, that learn. Calls of one worker take effect in the order they were made."""

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Makes the tables, or joins those that are there; different specs of one name are refused."""
        ...

    def prefetch(self, table: str, keys: Keys) -> None:
        """Says which keys will be pulled soon: may fetch cold rows, never changes what a pull returns."""
        ...

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """A row for each key, duplicates too; rows not seen before are made."""
        ...

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """What a pull would return, and no row is made: for models that are only looked at."""
        ...

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: Floats,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Gradients of rows that were pulled; those of one key are summed."""
        ...

    def end_step(self, step: int) -> None:
        """No more pushes of this step come from this worker."""
        ...

    def end_day(self) -> None:
        """Rows fade, and dead ones leave."""
        ...

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """(table, part of its rows) until all are told; as of the last step that ended."""
        ...

    def load(self, table: str, state: State) -> None:
        """Rows of a saved table; keys that live elsewhere are sent there."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """Rows, hit rate, bytes and skew, by table and by shard."""
        ...

    def close(self) -> None:
        """Waits for what is in flight, then lets go."""
        ...
