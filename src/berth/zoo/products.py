"""Matrix products of linear layers by oneDNN, on processors where torch's own are slower.

torch multiplies single-precision matrices by MKL, and ships oneDNN too. On AMD processors with AVX-512 oneDNN is
faster. `BERTH_MATMUL` chooses: `torch`, `onednn`, or `auto` (the default: by processor, so a run that resumes on the
same machine has the same bits). Sums are taken in another order than torch's, so results differ in their last digits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from berth.errors import InputError

VARIABLE = "BERTH_MATMUL"
CHOICES = ("auto", "torch", "onednn")
_LEAST_PRODUCTS = 1 << 24  # of a call: below, the call itself costs more than it saves


def onednn_layers(model: nn.Module, device: torch.device) -> list[nn.Module]:
    """Return the layers that oneDNN may compute; none where torch's products are used."""
    if device.type != "cpu" or not uses_onednn():
        return []
    return [layer for layer in model.modules() if type(layer) in _REPLACED]


@contextmanager
def onednn_products(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Compute the forward passes inside, and their backward passes, by oneDNN; the model is as before afterwards."""
    types = [(layer, type(layer)) for layer in layers]
    for layer, plain in types:
        layer.__class__ = _REPLACED[plain]
    try:
        yield
    finally:
        for layer, plain in types:
            layer.__class__ = plain


def uses_onednn() -> bool:
    """Return whether oneDNN computes the products, by `BERTH_MATMUL` and this processor."""
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in CHOICES:
        raise InputError(f"{VARIABLE}: expected {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, got {chosen!r}")
    if chosen == "torch":
        return False
    has_onednn = torch.backends.mkldnn.is_available()
    if chosen == "onednn" and not has_onednn:
        raise InputError(
            f"{VARIABLE}=onednn: this build of torch has no oneDNN", hint=f"use {VARIABLE}=torch"
        )
    return chosen == "onednn" or (has_onednn and _is_amd_with_avx512())


def _is_amd_with_avx512() -> bool:
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AuthenticAMD" in facts and torch.backends.cpu.get_cpu_capability() == "AVX512"


class _Linear(nn.Linear):
    """`nn.Linear` while a model is trained: large products by oneDNN, all else as torch does it."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch
        return self._products(input) if _suits_onednn(input, self.weight) else super().forward(input)

    def with_relu(self, input_: Tensor) -> Tensor:
        """Return the output after a ReLU; the output before it is not kept."""
        if _suits_onednn(input_, self.weight):
            return self._products(input_, relu=True)
        return functional.relu(super().forward(input_))

    def _products(self, input_: Tensor, relu: bool = False) -> Tensor:
        rows = input_.reshape(-1, input_.shape[-1])
        products: Tensor = _Products.apply(rows, self.weight, self.bias, relu)  # type: ignore[no-untyped-call]
        return products.reshape(*input_.shape[:-1], self.weight.shape[0])


class _Sequential(nn.Sequential):
    """`nn.Sequential` while a model is trained: a ReLU is applied with the linear layer before it."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - the name in torch
        layers, at = list(self), 0
        while at < len(layers):
            layer = layers[at]
            if (
                isinstance(layer, _Linear)
                and _is_plain_relu(layers[at + 1 : at + 2])
                and not _is_changed(layer)
            ):
                input, at = layer.with_relu(input), at + 2  # noqa: A001
            else:
                input, at = layer(input), at + 1  # noqa: A001
        return input


_REPLACED: dict[type, type] = {nn.Linear: _Linear, nn.Sequential: _Sequential}


def _is_plain_relu(layers: list[nn.Module]) -> bool:
    return bool(layers) and type(layers[0]) is nn.ReLU and not _is_changed(layers[0])


def _is_changed(layer: nn.Module) -> bool:
    """Whether a program looks at what passes through a layer, or has given it a forward pass of its own."""
    before, after = layer._forward_pre_hooks, layer._forward_hooks
    hooks = before or after or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooks) or "forward" in vars(layer)


def _suits_onednn(input_: Tensor, weight: Tensor) -> bool:
    return (
        input_.numel() * weight.shape[0] >= _LEAST_PRODUCTS
        and weight.shape[0] > 1
        and input_.shape[-1] == weight.shape[1]
        and input_.dtype == weight.dtype == torch.float32
        and input_.device.type == "cpu"
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )


class _Products(torch.autograd.Function):
    """input x weight^T + bias, and a ReLU.

    The ReLU is torch's: oneDNN's makes 0 of NaN, which would hide that training diverges.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        products = _multiply(rows, weight, bias)
        if relu:
            products.relu_()
        ctx.save_for_backward(rows, weight, products if relu else None)
        return products

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, weight, positive = ctx.saved_tensors
        of_rows, of_weight, of_bias, _ = ctx.needs_input_grad
        if positive is not None:
            gradient = torch.ops.aten.threshold_backward.default(gradient, positive, 0)
        # Gradients of gradients need products that torch can differentiate.
        multiply = torch.mm if torch.is_grad_enabled() else _multiply_right
        return (
            multiply(gradient, weight) if of_rows else None,
            multiply(gradient.t(), rows) if of_weight else None,
            gradient.sum(0) if of_bias else None,
            None,
        )


def _multiply_right(left: Tensor, right: Tensor) -> Tensor:
    return _multiply(left, right.t(), None)


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    return result
