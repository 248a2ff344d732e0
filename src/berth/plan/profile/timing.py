"""Times the computation of a layer, forward and backward, after one warm-up run.

On a CPU the clock is the process's CPU time: with one thread that is the wall-clock time of a dedicated core, and other
load on the machine does not count. On a GPU it is CUDA events around the work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from berth.plan.profile.facts import backward, clear, loss_or_outputs, run_layer, sparse_tables
from berth.zoo.layered import GrowingTable, LayeredModel, detached, map_tensors, tensors
from berth.zoo.slots import Lookup

_LEAST_RUNS, _ENOUGH_S = 3, 1.0


class Timing(NamedTuple):
    """Median seconds, and the spread: (75th - 25th percentile) / median."""

    seconds: float
    spread: float


def summarize(seconds: list[float]) -> Timing:
    """Return median and spread of repeated measurements."""
    median = statistics.median(seconds)
    if len(seconds) < 2 or median == 0:
        return Timing(median, 0.0)
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, (high - low) / median)


def chain_states(model: LayeredModel, batch: int, seed: int, device: str = "cpu") -> tuple[list[Any], Any]:
    """Return the input of every layer for one batch, and the labels, on a device."""
    inputs, labels = model.example_batch(batch, seed)
    state, labels = (map_tensors(part, lambda tensor: tensor.to(device)) for part in (inputs, labels))
    states = []
    for index in range(len(model)):
        states.append(detached(state))
        state = run_layer(model, index, states[-1])
    return states, labels


def time_layer(model: LayeredModel, index: int, state: Any, labels: Any, repeats: int) -> Timing:
    """Return median and spread of repeated runs, after a warm-up."""
    return _repeated(lambda: run_once(model, index, state, labels), repeats)


def run_once(model: LayeredModel, index: int, state: Any, labels: Any) -> float:
    """Return the seconds of one forward and backward pass of a layer on the device of its input."""
    fresh, layer = detached(state), model.layer(index)
    clear(layer)
    with _clock(state)() as taken:
        backward(loss_or_outputs(model, index, layer(fresh), labels))
    return taken[0]


def time_whole(model: LayeredModel, state: Any, labels: Any, repeats: int) -> Timing:
    """Return median and spread of forward and backward of the whole model, after a warm-up."""
    clock = _clock(state)

    def run() -> float:
        clear(model)
        fresh = detached(state)
        with clock() as taken:
            model.loss(model(fresh), labels).backward()
        return taken[0]

    timing = _repeated(run, repeats)
    clear(model)
    return timing


def time_step(module: nn.Module, repeats: int) -> Timing:
    """Return median and spread of Adam's step of a layer's dense parameters."""
    tables = {id(table.weight) for table in sparse_tables(module)}
    weights = [weight for weight in module.parameters() if id(weight) not in tables and weight.requires_grad]
    if not weights:
        return Timing(0.0, 0.0)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimiser, clock = torch.optim.Adam(weights, fused=True), _clock(weights[0])

    def run() -> float:
        with clock() as taken:
            optimiser.step()
        return taken[0]

    timing = _repeated(run, repeats)
    clear(module)
    return timing


def _repeated(run: Callable[[], float], repeats: int) -> Timing:
    """Return median and spread of repeated runs after a warm-up; of long ones at least three."""
    run()
    seconds: list[float] = []
    while len(seconds) < repeats and (len(seconds) < _LEAST_RUNS or sum(seconds) < _ENOUGH_S):
        seconds.append(run())
    return summarize(seconds)


class RowsOnly(nn.Module):
    """Replaces a table: returns rows of the right shape without looking them up."""

    def __init__(self, dim: int, key: str | None = None, out: str | None = None) -> None:
        super().__init__()
        self.dim, self.key, self.out = dim, key, out

    def forward(self, given: Any) -> Any:
        """Return rows for keys, or the state with rows for the keys of one entry."""
        if self.key is None or self.out is None:
            return self._rows(given)
        return {**given, self.out: self._rows(given[self.key])}

    def _rows(self, keys: torch.Tensor) -> torch.Tensor:
        return torch.full((*keys.shape, self.dim), 0.01, device=keys.device).requires_grad_()


def without_tables(model: LayeredModel) -> LayeredModel:
    """Replace tables whose rows a store would bring; the model changes."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Lookup):
                module.register_module(name, RowsOnly(child.table.embedding_dim, child.key, child.out))
            elif isinstance(child, GrowingTable):
                module.register_module(name, RowsOnly(child.dim))
    return model


def _clock(state: Any) -> Callable[[], AbstractContextManager[list[float]]]:
    types = {tensor.device.type for tensor in tensors(state)}
    if "cuda" in types:
        return _gpu_seconds
    return _cpu_seconds if types <= {"cpu"} else _wall_seconds


@contextmanager
def _cpu_seconds() -> Iterator[list[float]]:
    taken: list[float] = []
    start = time.process_time()
    yield taken
    taken.append(max(time.process_time() - start, 1e-9))


@contextmanager
def _wall_seconds() -> Iterator[list[float]]:
    """Of a device whose operations are complete when they return, such as the stand-in accelerator."""
    taken: list[float] = []
    start = time.perf_counter()
    yield taken
    taken.append(max(time.perf_counter() - start, 1e-9))


@contextmanager
def _gpu_seconds() -> Iterator[list[float]]:
    taken: list[float] = []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    yield taken
    end.record()
    torch.cuda.synchronize()
    taken.append(start.elapsed_time(end) / 1e3)
