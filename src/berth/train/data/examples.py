"""A model's own example batches as a stream, with one seed per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from berth.train.data.batch import Batch, Share
from berth.zoo.layered import map_tensors


class ExampleStream:
    """Batches from `draw(examples, seed) -> (inputs, labels)`, a function of the step."""

    random_access = True

    def __init__(self, draw: Callable[[int, int], tuple[Any, Any]], name: str, seed: int = 0) -> None:
        self._draw = draw
        self.name = name
        self.seed = seed

    def describe(self) -> Mapping[str, Any]:
        """Return the model name and the seed."""
        return {"kind": "examples", "of": self.name, "seed": self.seed}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        """Yield batches without end."""
        del seed
        while True:
            own = int(np.random.SeedSequence([self.seed, step]).generate_state(1)[0])
            inputs, labels = self._draw(batch, own)
            if share.workers > 1:
                inputs, labels = (
                    map_tensors(part, lambda tensor: tensor[share.worker :: share.workers].contiguous())
                    for part in (inputs, labels)
                )
            yield Batch(inputs, labels, share.of(batch), batch)
            step += 1

    def position(self, step: int) -> Mapping[str, Any]:
        """Return nothing: any step can be generated."""
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Do nothing."""
