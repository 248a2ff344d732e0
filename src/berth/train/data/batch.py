"""Batches and their source; batch n is a pure function of the data, the seed and n."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """Model inputs and labels."""

    inputs: Any
    labels: Any
    examples: int
    whole: int | None = None  # examples of the global batch; None: every worker has as many
    weights: Any = None  # of the examples in the loss; None: all equal

    def part(self, workers: int) -> float:
        """Return the weight of these examples in the mean over the global batch."""
        return 1.0 / workers if self.whole is None else self.examples / self.whole


@dataclass(frozen=True, slots=True)
class Share:
    """Rows `worker`, `worker + workers`, ... of every global batch."""

    worker: int = 0
    workers: int = 1

    def of(self, batch: int) -> int:
        """Return the number of rows of a batch."""
        return len(range(self.worker, batch, self.workers))


class BatchSource(Protocol):
    """Data that can be read from any step on."""

    def describe(self) -> Mapping[str, Any]:
        """Return what identifies the data; a checkpoint is resumed with the same data only."""
        ...

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Yield batches of `batch` examples from this step to the end of the data."""
        ...

    def position(self, step: int) -> Mapping[str, Any]:
        """Return what helps to find this step quickly when resuming; may be empty."""
        ...

    def seek(self, position: Mapping[str, Any]) -> None:
        """Restore a `position`."""
        ...
