"""A model as a chain of named layers that can be cut into stages anywhere.

Each layer takes the output of the previous one: a tensor, or a mapping of tensors where a model has two towers. So
running layers [0:i] on one device and [i:] on another is the same computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Example = Callable[[int, int], tuple[Any, Any]]
Loss = Callable[..., Tensor]  # of output, labels and, where examples have weights, weights


class Layer(NamedTuple):
    """A layer of the chain, with its name and kind."""

    name: str
    kind: str
    module: nn.Module


class LayeredModel(nn.Module):
    """A chain of layers, with example batches and a loss."""

    def __init__(
        self, name: str, layers: Sequence[Layer], example: Example, loss: Loss, *, batch: int, sample: str
    ) -> None:
        super().__init__()
        self.name = name
        self.kinds = tuple(layer.kind for layer in layers)
        self.chain = nn.ModuleDict({layer.name: layer.module for layer in layers})
        self.batch = batch  # suitable number of examples per batch
        self.sample = sample  # what one example is
        self.where: str | None = None  # file:line of a user's model
        self._example = example
        self._loss = loss

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(self.chain)

    def __len__(self) -> int:
        return len(self.chain)

    def layer(self, index: int) -> nn.Module:
        """Return a layer by its index."""
        return self.chain[self.names[index]]

    def forward(self, state: Any) -> Any:
        """Run the whole chain."""
        return self.run(state)

    def run(self, state: Any, start: int = 0, stop: int | None = None) -> Any:
        """Run layers start to stop (excluded) on the output of the layer before `start`."""
        for module in list(self.chain.values())[start:stop]:
            state = module(state)
        return state

    def stage(self, start: int, stop: int | None = None) -> nn.Sequential:
        """Return layers start to stop (excluded) as a module; the weights are shared, not copied."""
        return nn.Sequential(*list(self.chain.values())[start:stop])

    def example_batch(self, batch: int, seed: int = 0) -> tuple[Any, Any]:
        """Return inputs of the first layer and labels for the loss; equal seeds give equal batches."""
        return self._example(batch, seed)

    def set_examples(self, example: Example) -> None:
        """Draw example batches by another function, for a model whose inputs are those of files."""
        self._example = example

    def loss(self, output: Any, labels: Any, *weights: Any) -> Tensor:
        """Return the mean loss of a batch; with weights of its examples, if the loss takes them."""
        return self._loss(output, labels, *weights)


@runtime_checkable
class GrowingTable(Protocol):
    """A layer that creates rows for new keys (`berth.train.Embedding`), outside of torch parameters."""

    dim: int

    def pulled_keys(self) -> Tensor:
        """Return the keys of the forward passes since the last update or `discard_pulls`."""
        ...

    def discard_pulls(self) -> None:
        """Discard those passes without an update."""
        ...


def growing_tables(module: nn.Module) -> Iterator[GrowingTable]:
    """Yield every such layer of a module."""
    for part in module.modules():
        if isinstance(part, GrowingTable):
            yield part


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield every tensor of the state between two layers."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, tuple | list):
        for value in state:
            yield from tensors(value)


def map_tensors(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same structure with `change` applied to every tensor."""
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: map_tensors(value, change) for key, value in state.items()}
    if isinstance(state, tuple | list):
        values = [map_tensors(value, change) for value in state]
        return type(state)(*values) if hasattr(state, "_fields") else type(state)(values)
    return state


def detached(state: Any) -> Any:
    """Return the state detached from earlier layers; tensors keep their `requires_grad`."""
    return map_tensors(state, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, and restore its random state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
