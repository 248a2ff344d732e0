"""Turns a user's nn.Module into a chain of named layers with example batches."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from berth.errors import InputError
from berth.zoo.layered import Example, Layer, LayeredModel, Loss, growing_tables, tensors

_KINDS: tuple[tuple[str, tuple[type[nn.Module], ...]], ...] = (
    ("attention", (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    ("convolution", (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)),
    ("recurrent", (nn.RNNBase, nn.RNNCellBase)),
    ("fully_connected", (nn.Linear, nn.Bilinear)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.RMSNorm)),
    ("pooling", (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.AdaptiveMaxPool2d)),
    ("loss", (nn.Softmax, nn.LogSoftmax)),
)
_BATCH = 64


def layered(
    made: Any, name: str, source: ModuleType, where: str, input_shape: tuple[int, ...] | None
) -> LayeredModel:
    """Return the chain of a module's children, in the order in which they were defined."""
    if not isinstance(made, nn.Module):
        raise InputError(
            f"returns a {type(made).__name__}, not a torch nn.Module",
            where=where,
            hint="return an nn.Sequential, or a module whose children run one after the other",
        )
    children = list(made.named_children())
    if not children:
        raise InputError(
            "returns a model without layers", where=where, hint="return an nn.Sequential of layers"
        )
    layers = [Layer(_named(key, child), kind_of(child), child) for key, child in children]
    batch = getattr(source, "BATCH", _BATCH)
    sample = getattr(source, "SAMPLE", "example")
    example = _example(source, where, input_shape)
    model = LayeredModel(name, layers, example, _loss(source), batch=batch, sample=sample)
    model.where = where
    return model


def kind_of(module: nn.Module) -> str:
    """Return the kind of a layer, by its own type or that of its part with the most parameters."""
    if any(growing_tables(module)):
        return "embedding"
    largest = max(module.modules(), key=_own_parameters)
    for part in (module, largest):
        for kind, types in _KINDS:
            if isinstance(part, types):
                return kind
    return "other"


def _own_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters(recurse=False))


def _named(key: str, child: nn.Module) -> str:
    """Name a child of nn.Sequential, which only numbers them, by its type."""
    return f"{type(child).__name__.lower()}{key}" if key.isdecimal() else key


def _example(source: ModuleType, where: str, input_shape: tuple[int, ...] | None) -> Example:
    own = getattr(source, "example_batch", None)
    if own is not None:
        return _own_example(own, where)
    if input_shape is None:
        raise InputError(
            "no example batch: the file has no `example_batch` function",
            where=where,
            hint="define `def example_batch(batch, seed):`, or give --input-shape 3,32,32 (of one example)",
        )

    def drawn(batch: int, seed: int) -> tuple[Tensor, None]:
        return torch.randn(batch, *input_shape, generator=torch.Generator().manual_seed(seed)), None

    return drawn


def _own_example(own: Any, where: str) -> Example:
    takes_seed = "seed" in inspect.signature(own).parameters

    def drawn(batch: int, seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        try:
            result = own(batch, seed=seed) if takes_seed else own(batch)
        except Exception as error:
            raise InputError(f"example_batch fails: {type(error).__name__}: {error}", where=where) from error
        return result if isinstance(result, tuple) and len(result) == 2 else (result, None)

    return drawn


def _loss(source: ModuleType) -> Loss:
    own: Loss | None = getattr(source, "loss", None)
    return own or default_loss


def default_loss(output: Any, labels: Any) -> Tensor:
    """Return cross-entropy for integer labels, mean squared error for others, the mean square without labels.

    An output with one number per integer label holds logits.
    """
    first = next(tensors(output))
    if labels is None:
        return first.float().square().mean()
    if not labels.is_floating_point() and first.numel() == labels.numel():
        return nn.functional.binary_cross_entropy_with_logits(
            first.flatten(), labels.flatten().to(first.dtype)
        )
    if not labels.is_floating_point():
        return nn.functional.cross_entropy(first.flatten(0, -2), labels.flatten())
    return nn.functional.mse_loss(first, labels)
