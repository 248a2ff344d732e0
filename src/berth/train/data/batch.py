"""What a reader gives: batch n of a run, a pure function of the data, the seed and n."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """What the model takes, and what it should have said."""

    inputs: Any
    labels: Any
    examples: int
    whole: int | None = None  # examples of the batch that workers share; not said: as many as here in each

    def part(self, workers: int) -> float:
        """How much of the whole batch's mean is that of these examples."""
        return 1.0 / workers if self.whole is None else self.examples / self.whole


@dataclass(frozen=True, slots=True)
class Share:
    """Rows `worker`, `worker + workers`, ... of every global batch."""

    worker: int = 0
    workers: int = 1

    def of(self, batch: int) -> int:
        """How many rows of a batch these are."""
        return len(range(self.worker, batch, self.workers))


class Source(Protocol):
    """Data that can be read from any step on."""

    def describe(self) -> Mapping[str, Any]:
        """What makes two sources the same data: a checkpoint is resumed with no other."""
        ...

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Batches of `batch` examples from this step on; ends where the data ends."""
        ...

    def position(self, step: int) -> Mapping[str, Any]:
        """What helps to find this step quickly the next time; may be empty."""
        ...

    def seek(self, position: Mapping[str, Any]) -> None:
        """Takes what `position` gave."""
        ...
