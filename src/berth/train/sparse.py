"""The interface between training and sparse tables, wherever their rows are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from berth.train.tables import Admission, DecayPolicy, Initialiser, Optimiser, State

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
DENSE_TABLE = "dense weights"  # the table of dense weights, in modes in which servers hold them


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Description of one table of a model; every server holds a shard of it."""

    name: str
    dim: int
    optimiser: Optimiser
    initialiser: Initialiser
    admission: Admission | None = None
    decay: DecayPolicy | None = None

    @property
    def counts_pulls(self) -> bool:
        """Whether admission counts the pulls of a key."""
        return self.admission is not None and self.admission.kind == "count"

    @property
    def counts_clicks(self) -> bool:
        """Whether decay or admission uses shows and clicks."""
        return self.decay is not None or (self.admission is not None and self.admission.kind == "score")

    @property
    def is_dense(self) -> bool:
        """Whether this is the table of dense weights: exact on the wire, and always in memory."""
        return self.name == DENSE_TABLE

    def to_json(self) -> dict[str, Any]:
        """Return the description as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> TableSpec:
        """Return the description that `to_json` wrote, by this version or an earlier one; `KeyError` or `TypeError` if
        it is not one."""
        from berth.train.tables import Admission, DecayPolicy, Initialiser, Optimiser

        document = current_spec(document)
        lower, upper = document["optimiser"]["bounds"]
        admission, decay = document["admission"], document["decay"]
        return cls(
            str(document["name"]),
            int(document["dim"]),
            Optimiser(**{**document["optimiser"], "bounds": (float(lower), float(upper))}),
            Initialiser(**document["initialiser"]),
            Admission(**admission) if admission else None,
            DecayPolicy(**decay) if decay else None,
        )


def current_spec(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a table in today's names: earlier versions wrote `life`, with other names inside."""
    if "life" not in document:
        return dict(document)
    spec = {("decay" if name == "life" else name): value for name, value in document.items()}
    if spec["decay"]:
        renamed = {"least_score": "min_score", "most_unseen_days": "max_unseen_days"}
        spec["decay"] = {
            renamed.get(name, name): value for name, value in spec["decay"].items() if name != "wide_score"
        }
    return spec


class SparseStore(Protocol):
    """Trainable rows by key. Calls of one worker take effect in the order in which they are made."""

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create the tables, or join existing ones; a different spec of the same name is an error."""
        ...

    def prefetch(self, table: str, keys: Keys) -> None:
        """Announce keys that will be pulled soon; may load cold rows, never changes what a pull returns."""
        ...

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return a row for each key, duplicates included; missing rows are created."""
        ...

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows (inference)."""
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
        """Apply gradients to rows; those of one key are summed."""
        ...

    def end_step(self, step: int) -> None:
        """End this worker's step."""
        ...

    def end_day(self) -> None:
        """End the day: decay counts and delete expired rows."""
        ...

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Yield (table, part of its rows) for all tables, as of the last ended step."""
        ...

    def load(self, table: str, state: State) -> None:
        """Load rows of a saved table; each key goes to its shard."""
        ...

    def statistics(self) -> Mapping[str, Any]:
        """Return rows, hit rate, bytes and skew, by table and by shard."""
        ...

    def close(self) -> None:
        """Wait for requests in flight, then release everything."""
        ...

    @property
    def is_shard(self) -> bool:
        """Whether `statistics` are of this rank's rows only, and those of all ranks add up."""
        ...

    def evaluation(self) -> AbstractContextManager[None]:
        """Return a context for scoring: it ends when no rank needs rows of this one any more."""
        ...

    def attend_checkpoint(self) -> None:
        """Do this rank's part of saving or loading: rank 0 calls it when it is done, the others instead."""
        ...


class WithoutPeers:
    """The part of a `SparseStore` whose rows are not in the memory of other ranks."""

    is_shard = False

    def evaluation(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: rows are always available."""
        return nullcontext()

    def attend_checkpoint(self) -> None:
        """Do nothing: rank 0 saves and loads alone."""


class DenseStore(SparseStore, Protocol):
    """A store that also holds dense weights, in the table `DENSE_TABLE`."""

    def push_dense(self, keys: Keys, gradients: Floats, settings: Floats) -> None:
        """Apply gradients, each key once, with the current settings of the optimiser."""
        ...
