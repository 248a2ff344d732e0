"""Time per layer in a real run; sampled steps compute exactly what others do.

Forward times are taken between layers. In the backward pass, the gradient of a layer's output arrives when the layers
after it are done; the time until the next arrival is the layer's own. Times are CPU time of the thread, as in profiles.
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
    """Samples one step in `every`, up to `most`, after the first few."""

    model: LayeredModel
    every: int = 4
    most: int = 32
    skipped: int = 2
    samples: list[dict[str, float]] = field(default_factory=list)
    _taken: dict[str, float] = field(default_factory=dict)
    _arrivals: list[tuple[float, str]] = field(default_factory=list)
    _since: float = 0.0
    _seen: int = 0

    def should_sample(self) -> bool:
        """Return whether to sample this step."""
        self._seen += 1
        late = self._seen - self.skipped
        return late > 0 and late % self.every == 0 and len(self.samples) < self.most

    def forward(self, state: Any) -> Any:
        """Run the forward pass of all layers."""
        self._taken, self._arrivals = {}, []
        known: dict[int, Tensor] = {}  # keeps tensors alive: ids of freed tensors are reused
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
        """Attribute the backward pass to the layers."""
        end = time.thread_time()
        moments = [*self._arrivals, (end, "")]
        for (begin, name), (after, _) in itertools.pairwise(moments):
            self._taken[name] += after - begin
        self._since = end

    def done(self, what: str) -> None:
        """Attribute the time since the last call."""
        now = time.thread_time()
        self._taken[what] = now - self._since
        self._since = now

    def finish(self) -> None:
        """End the sampled step."""
        self.samples.append(self._taken)

    def seconds(self) -> dict[str, float]:
        """Return the median of the sampled steps, by layer, then push and dense update."""
        names = self.samples[0] if self.samples else {}
        return {name: statistics.median(sample[name] for sample in self.samples) for name in names}

    def _arrival(self, name: str) -> Any:
        def note(gradient: Tensor) -> None:
            self._arrivals.append((time.thread_time(), name))

        return note
