"""A model as a chain of named layers that can be cut anywhere.

Each layer takes what the one before returned: a tensor, or a mapping of tensors where a model has two towers. So
running layers [0:i] on one device and [i:] on another is the same computation, which is what stages are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Example = Callable[[int, int], tuple[Any, Any]]
Loss = Callable[[Any, Any], Tensor]


class Layer(NamedTuple):
    """A link of the chain, with its name and kind."""

    name: str
    kind: str
    module: nn.Module


class LayeredModel(nn.Module):
    """A chain of layers, a way to draw example batches, and the loss."""

    def __init__(
        self, name: str, layers: Sequence[Layer], example: Example, loss: Loss, *, batch: int, sample: str
    ) -> None:
        super().__init__()
        self.name = name
        self.kinds = tuple(layer.kind for layer in layers)
        self.chain = nn.ModuleDict({layer.name: layer.module for layer in layers})
        self.batch = batch  # examples per batch that suit it
        self.sample = sample  # what one example is
        self.where: str | None = None  # file:line of a user's own
        self._example = example
        self._loss = loss

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers in the order in which they run."""
        return tuple(self.chain)

    def __len__(self) -> int:
        return len(self.chain)

    def layer(self, index: int) -> nn.Module:
        """One layer by its place."""
        return self.chain[self.names[index]]

    def forward(self, state: Any) -> Any:
        """The whole chain."""
        return self.run(state)

    def run(self, state: Any, start: int = 0, stop: int | None = None) -> Any:
        """Layers start to stop (excluded) on what the layer before `start` returned."""
        for module in list(self.chain.values())[start:stop]:
            state = module(state)
        return state

    def stage(self, start: int, stop: int | None = None) -> nn.Sequential:
        """Layers start to stop (excluded) as a module of their own; the weights are shared, not copied."""
        return nn.Sequential(*list(self.chain.values())[start:stop])

    def example_batch(self, batch: int, seed: int = 0) -> tuple[Any, Any]:
        """Inputs of the first layer and labels for the loss; equal seeds give equal batches."""
        return self._example(batch, seed)

    def loss(self, output: Any, labels: Any) -> Tensor:
        """Mean loss of a batch."""
        return self._loss(output, labels)


@runtime_checkable
class GrowingTable(Protocol):
    """A layer whose rows are made as keys are met (`berth.train.Embedding`); no weight of torch's holds them."""

    dim: int

    def asked(self) -> Tensor:
        """Keys of the forward passes since it last learned or forgot."""
        ...

    def forget(self) -> None:
        """Learns nothing from those passes."""
        ...


def growing_tables(module: nn.Module) -> Iterator[GrowingTable]:
    """Every such layer of a module."""
    for part in module.modules():
        if isinstance(part, GrowingTable):
            yield part


def tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor of what passes between two layers."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, tuple | list):
        for value in state:
            yield from tensors(value)


def mapped(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: mapped(value, change) for key, value in state.items()}
    if isinstance(state, tuple | list):
        values = [mapped(value, change) for value in state]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    return state


def cut_off(state: Any) -> Any:
    """The state without the layers before it; what needed a gradient still asks for one."""
    return mapped(state, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Weights drawn inside depend on the seed alone, and nobody else's random numbers are disturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
