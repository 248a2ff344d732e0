"""A model as two exported programs: from inputs to the keys of its look-ups, and from inputs and rows to its output."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from berth.errors import InputError
from berth.train.embedding import Embedding, embeddings_of
from berth.train.pooling import padded_pooling

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Lookup:
    """One look-up of the forward pass."""

    layer: Embedding
    keys: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Programs:
    """The exported programs, and what they were traced with."""

    keys: ExportedProgram
    dense: ExportedProgram
    lookups: tuple[Lookup, ...]
    output: Tensor


def export_programs(model: nn.Module, inputs: Inputs) -> Programs:
    """Export a model in eval mode; `inputs` are an example batch, whose first dimension may vary afterwards."""
    output, lookups = recorded(model, inputs)
    if not isinstance(output, Tensor):
        raise InputError(f"a model that returns a {type(output).__name__} can't be exported: return a tensor")
    given = {name: _varying(value) for name, value in inputs.items()}
    rows = tuple(lookup.rows for lookup in lookups)
    keys = _export(_Keys(model), (inputs,), (given,))
    dense = _export(_Dense(model), (inputs, rows), (given, tuple(_varying(part) for part in rows)))
    return Programs(keys, dense, lookups, output)


def recorded(model: nn.Module, inputs: Inputs) -> tuple[Any, tuple[Lookup, ...]]:
    """Return the output of a model, and the look-ups of its forward pass in order."""
    found: list[Lookup] = []

    def look_up(layer: Embedding, keys: Tensor) -> Tensor:
        rows = Embedding.forward(layer, keys)
        found.append(Lookup(layer, keys, rows))
        return rows

    with torch.no_grad(), _replaced(model, look_up):
        output = model(inputs)
    return output, tuple(found)


def check_programs(programs: Programs, model: nn.Module, inputs: Inputs) -> None:
    """Raise if the programs differ from the model on these inputs."""
    output, lookups = recorded(model, inputs)
    try:
        with torch.no_grad():
            keys = programs.keys.module()(inputs)
            computed = programs.dense.module()(inputs, tuple(lookup.rows for lookup in lookups))
    except (AssertionError, RuntimeError) as error:
        raise InputError(
            f"the exported program does not take a batch of another size: {str(error).splitlines()[0]}",
            hint="len(x) and int(x.shape[0]) fix the size; use x.shape[0], or -1 in reshape",
        ) from error
    if any(not torch.equal(ours, lookup.keys) for ours, lookup in zip(keys, lookups, strict=True)):
        raise InputError(
            "keys of this model depend on rows of a table, so its look-ups can't be exported apart from it",
            hint="compute keys from the inputs only",
        )
    if not torch.allclose(computed, output, rtol=1e-5, atol=1e-6):
        worst = float((computed - output).abs().max())
        raise InputError(f"the exported program differs from the model by {worst:.3g}")


class _Keys(nn.Module):
    """Returns the keys of all look-ups; rows read as zeros."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        keys: list[Tensor] = []

        def look_up(layer: Embedding, wanted: Tensor) -> Tensor:
            keys.append(wanted)
            return torch.zeros((*wanted.shape, layer.dim))

        with _replaced(self.model, look_up):
            self.model(inputs)
        return tuple(keys)


class _Dense(nn.Module):
    """Returns the output; rows are an argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs, rows: Sequence[Tensor]) -> Tensor:
        given = iter(rows)
        with _replaced(self.model, lambda layer, keys: next(given)):
            output: Tensor = self.model(inputs)
        return output


@contextmanager
def _replaced(model: nn.Module, look_up: Callable[[Embedding, Tensor], Tensor]) -> Iterator[None]:
    """Replace the forward pass of every `Embedding` inside the block."""
    layers = embeddings_of(model)
    for layer in layers:
        setattr(layer, "forward", partial(look_up, layer))  # noqa: B010 - a method, for mypy
    try:
        with padded_pooling():
            yield
    finally:
        for layer in layers:
            del layer.forward


def _varying(value: Tensor) -> dict[int, Any]:
    """Return the dimensions that may vary: the examples, and the length of lists of keys or rows."""
    lists = value.ndim == (3 if value.is_floating_point() else 2)
    return dict.fromkeys(range(1 + lists), Dim.AUTO) if value.ndim else {}


def _export(program: nn.Module, example: tuple[Any, ...], shapes: tuple[Any, ...]) -> ExportedProgram:
    try:
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
        ):
            warnings.simplefilter("ignore")  # torch prints the whole graph if it fails
            return torch.export.export(program, example, dynamic_shapes=shapes)
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(
            f"torch.export can't trace this model: {type(error).__name__}: {first}",
            hint="its forward pass must not branch on values; see torch.export in PyTorch's documentation",
        ) from error
