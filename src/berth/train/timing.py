"""How long each layer takes in a real training: some steps are watched, and compute exactly what others do.

Forward times are taken between layers. Backward, the gradient of a layer's output arrives when the layers after it
are done: what passes until the next such arrival is the layer's own time. CPU time of the thread, as in profiles.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from berth.zoo.layered import LayeredModel, tensors

PUSH, UPDATE = "push of rows", "dense update"


@dataclass(slots=True)
class LayerClock:
    """Watches one step of `every`, up to `most` of them, after the first few."""

    model: LayeredModel
    every: int = 4
    most: int = 32
    skipped: int = 2
    samples: list[dict[str, float]] = field(default_factory=list)
    _taken: dict[str, float] = field(default_factory=dict)
    _arrivals: list[tuple[float, str]] = field(default_factory=list)
    _since: float = 0.0
    _seen: int = 0

    def wants(self) -> bool:
        """Whether this step is watched."""
        self._seen += 1
        late = self._seen - self.skipped
        return late > 0 and late % self.every == 0 and len(self.samples) < self.most

    def forward(self, state: Any) -> Any:
        """The whole chain."""
        self._taken, self._arrivals = {}, []
        known: dict[int, Tensor] = {}  # kept: the number of a freed tensor may be given to the next
        for name, module in self.model.chain.items():
            begin = time.thread_time()
            state = module(state)
            self._taken[name] = time.thread_time() - begin
            for tensor in tensors(state):
                if tensor.requires_grad and id(tensor) not in known:
                    known[id(tensor)] = tensor
                    tensor.register_hook(self._arrival(name))
        self._since = time.thread_time()
        return state

    def backward_done(self) -> None:
        """Divides the backward pass among the layers."""
        end = time.thread_time()
        moments = [*self._arrivals, (end, "")]
        for (begin, name), (after, _) in itertools.pairwise(moments):
            self._taken[name] += after - begin
        self._since = end

    def done(self, what: str) -> None:
        """What passed since the last call was this."""
        now = time.thread_time()
        self._taken[what] = now - self._since
        self._since = now

    def finish(self) -> None:
        """The step is over."""
        self.samples.append(self._taken)

    def seconds(self) -> dict[str, float]:
        """Median of the watched steps, by layer, then the push and the dense update."""
        names = self.samples[0] if self.samples else {}
        return {name: statistics.median(sample[name] for sample in self.samples) for name in names}

    def _arrival(self, name: str) -> Any:
        def note(gradient: Tensor) -> None:
            self._arrivals.append((time.thread_time(), name))

        return note
