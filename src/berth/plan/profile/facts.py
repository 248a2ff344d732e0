"""Counts the facts of every layer while one batch passes through it.

Bytes are those of the tensors. Operations are counted by torch's FlopCounterMode, forward and backward; it counts none
for look-ups and element-wise work, whose time depends on bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from berth.errors import InputError
from berth.plan.profile.layer_profile import LayerFacts
from berth.zoo.layered import LayeredModel, detached, growing_tables, tensors
from berth.zoo.load import own_line
from berth.zoo.slots import Lookup

NOTE = "bytes of the tensors of one batch; operations by torch's FlopCounterMode"
_FLOAT_BYTES = 4
_INPUT_PASSES, _OUTPUT_PASSES, _WEIGHT_PASSES = 3, 2, 3
_GROWTH_SIZES = (4, 2, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64)  # of a batch
Report = Callable[[str], None]


@dataclass
class _Counted:
    """The counters of one layer for one batch."""

    before: Any
    after: Any
    flops: int = 0
    kernels: int = 0
    activation_bytes: int = 0
    touched_bytes: int = 0  # distinct rows looked up
    lookups: int = 0  # rows looked up, with repetitions
    gathered_bytes: int = 0  # of them


def layer_facts(
    model: LayeredModel, batch: int, seed: int = 0, report: Report | None = None
) -> list[LayerFacts]:
    """Run one batch through the chain, layer by layer, and count."""
    state, labels = model.example_batch(batch, seed)
    facts = []
    growths = touched_growth(model, batch, seed)  # of ids, which the tables of the zoo fold into fewer rows
    for index, name in enumerate(model.names):
        if report:
            report(f"counting {name}")
        counted = count_layer(model, index, state, labels)
        growth, ids = growths[index]
        if counted.lookups:
            counted.touched_bytes = ids * counted.gathered_bytes // counted.lookups
        facts.append(_facts(name, model.kinds[index], model.layer(index), counted, growth, index == 0))
        state = counted.after
    return facts


def count_layer(model: LayeredModel, index: int, state: Any, labels: Any) -> _Counted:
    """Run forward and backward of one layer with all counters."""
    module, before = model.layer(index), detached(state)
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    counted = _Counted(before, None)

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as flops, _Launches() as launches, saved_tensors_hooks(keep, _same):
        counted.after = run_layer(model, index, before)
        backward(loss_or_outputs(model, index, counted.after, labels))
    counted.flops, counted.kernels = flops.get_total_flops(), launches.count
    counted.activation_bytes = sum(kept.values())
    counted.touched_bytes, counted.lookups, counted.gathered_bytes = _looked_up(module)
    clear(module)
    return counted


def run_layer(model: LayeredModel, index: int, state: Any) -> Any:
    """Run one layer forward; an error of the model names the layer."""
    try:
        return model.layer(index)(state)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        path = (model.where or "").rpartition(":")[0]
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"layer {model.names[index]!r} of {model.name} fails: {reason}",
            where=own_line(error, path) or model.where,
            hint="each layer takes the output of the previous one; check the example batch too",
        ) from error


def loss_or_outputs(model: LayeredModel, index: int, after: Any, labels: Any) -> list[Tensor]:
    """Return the roots of the backward pass: the loss for the last layer, the outputs for any other."""
    if index == len(model) - 1:
        return [model.loss(after, labels)]
    return [tensor for tensor in tensors(after) if tensor.grad_fn is not None]


def backward(roots: list[Tensor]) -> None:
    """Back-propagate ones, if the layer has gradients at all."""
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def sparse_tables(module: nn.Module) -> Iterator[nn.Embedding | nn.EmbeddingBag]:
    """Yield tables with sparse gradients, which servers hold."""
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            yield part


def clear(module: nn.Module) -> None:
    """Discard gradients, and rows that wait for theirs."""
    module.zero_grad(set_to_none=True)
    for table in growing_tables(module):
        table.discard_pulls()


class _Launches(TorchDispatchMode):
    """Counts operations other than views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func._schema.name in _FREE)
        return func(*args, **(kwargs or {}))


# Operations without work, and the gradients of ones that replace the next layer's.
_FREE = {f"aten::{name}" for name in ("detach", "_unsafe_view", "empty", "empty_like", "ones_like", "fill_")}


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _looked_up(module: nn.Module) -> tuple[int, int, int]:
    """Return the bytes of the distinct rows of the batch, the look-ups, and their bytes."""
    touched = lookups = gathered = 0
    for rows, row_bytes in _rows_met(module):
        lookups += len(rows)
        gathered += len(rows) * row_bytes
        touched += len(rows.unique()) * row_bytes
    return touched, lookups, gathered


def _rows_met(module: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield for each table the rows that were looked up, with repetitions, and the bytes of one."""
    for table in sparse_tables(module):
        if table.weight.grad is not None:
            yield table.weight.grad._indices()[0], _row_bytes(table)
    for growing in growing_tables(module):
        yield growing.pulled_keys(), growing.dim * _FLOAT_BYTES


def _row_bytes(table: nn.Embedding | nn.EmbeddingBag) -> int:
    return table.weight.shape[1] * table.weight.element_size()


def _facts(
    name: str, kind: str, module: nn.Module, counted: _Counted, growth: float, is_first: bool
) -> LayerFacts:
    tables = list(sparse_tables(module))
    table_ids = {id(table.weight) for table in tables}
    dense = [nbytes(weight) for weight in module.parameters() if id(weight) not in table_ids]
    touched = counted.touched_bytes
    rows = [_row_bytes(table) for table in tables]
    rows += [growing.dim * _FLOAT_BYTES for growing in growing_tables(module)]
    return LayerFacts(
        name=name,
        kind=kind,
        input_bytes=sum(map(nbytes, tensors(counted.before))),
        output_bytes=sum(map(nbytes, tensors(counted.after))),
        gradient_bytes=sum(nbytes(tensor) for tensor in tensors(counted.after) if tensor.requires_grad),
        dense_bytes=sum(dense),
        largest_tensor_bytes=max(dense, default=0),
        # A growing table has no fixed size: it holds at least the rows of this batch.
        sparse_bytes=sum(nbytes(table.weight) for table in tables) or touched,
        touched_bytes=touched,
        touched_growth=growth,
        lookups=counted.lookups,
        row_bytes=max(rows, default=_FLOAT_BYTES),
        flops=int(counted.flops),
        moved_bytes=_moved(counted, sum(dense), is_first),
        activation_bytes=counted.activation_bytes,
        kernels=counted.kernels,
    )


def touched_growth(model: LayeredModel, batch: int, seed: int) -> list[tuple[float, int]]:
    """Return for every layer g of distinct ids ~ batch ** g, fitted from 1/64 of a batch to four times as much, and
    the distinct ids of one batch."""
    looked_up: list[list[Tensor]] = [[] for _ in range(len(model))]
    hooks = []
    for index in range(len(model)):
        take = looked_up[index].append
        folding = [part for part in model.layer(index).modules() if isinstance(part, Lookup)]
        folded = {id(part.table) for part in folding}
        hooks += [
            part.register_forward_pre_hook(lambda part, given, take=take: take(given[0][part.key].flatten()))
            for part in folding
        ]
        for table in (*sparse_tables(model.layer(index)), *growing_tables(model.layer(index))):
            assert isinstance(table, nn.Module)
            if id(table) not in folded:
                hooks.append(
                    table.register_forward_pre_hook(lambda _, given, take=take: take(given[0].flatten()))
                )
    if hooks:
        state, _ = model.example_batch(_GROWTH_SIZES[0] * batch, seed)
        with torch.no_grad():
            for index in range(len(model)):
                state = run_layer(model, index, state)
    for hook in hooks:
        hook.remove()
    return [_growth(rows) for rows in looked_up]


def _growth(tables: list[Tensor]) -> tuple[float, int]:
    """Return the slope of a line through one batch, in logarithms, and the distinct keys of that batch.

    The tables' keys are those of the largest size.
    """
    rows = {
        size: sum(len(keys[: int(len(keys) * size / _GROWTH_SIZES[0])].unique()) for keys in tables)
        for size in _GROWTH_SIZES
    }
    points = [(math.log(size), math.log(count / rows[1])) for size, count in rows.items() if count]
    squares = sum(size * size for size, _ in points)
    slope = sum(size * count for size, count in points) / squares if squares else 1.0
    return round(min(1.0, max(0.0, slope)), 4), rows[1]


def _moved(counted: _Counted, dense_bytes: int, is_first: bool) -> int:
    """Return the bytes read and written in memory.

    Inputs are read twice and their gradient written, outputs written and their gradient read, weights read twice and
    their gradient written, other saved tensors written and read. Tensors that a layer passes through move nothing.
    """
    passed_through = {tensor.data_ptr() for tensor in tensors(counted.after)}
    taken = {tensor.data_ptr() for tensor in tensors(counted.before)}
    read = sum(
        nbytes(tensor) for tensor in tensors(counted.before) if tensor.data_ptr() not in passed_through
    )
    written = sum(nbytes(tensor) for tensor in tensors(counted.after) if tensor.data_ptr() not in taken)
    gathered = 2 * counted.gathered_bytes  # rows read, their gradients written
    passes = 1 if counted.lookups or is_first else _INPUT_PASSES
    inner = max(0, counted.activation_bytes - read - written)
    return passes * read + _OUTPUT_PASSES * written + gathered + 2 * inner + _WEIGHT_PASSES * dense_bytes


def nbytes(tensor: Tensor) -> int:
    """Return the bytes of a dense tensor."""
    return tensor.numel() * tensor.element_size()
