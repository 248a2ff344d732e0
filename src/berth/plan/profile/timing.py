"""Times the computation of a layer, forward and backward, after one warm-up run.

On a CPU the clock is the process's CPU time: with one thread that is the wall-clock time of a dedicated core, and other
load on the machine does not count. On a GPU it is CUDA events around the work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from berth.plan.profile.facts import backward, clear, loss_or_outputs, run_layer
from berth.zoo.layered import LayeredModel, detached, map_tensors, tensors


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
    runs = [run_once(model, index, state, labels) for _ in range(1 + repeats)]
    return summarize(runs[1:])


def run_once(model: LayeredModel, index: int, state: Any, labels: Any) -> float:
    """Return the seconds of one forward and backward pass of a layer on the device of its input."""
    fresh, layer = detached(state), model.layer(index)
    clear(layer)
    clock = _gpu_seconds if any(tensor.is_cuda for tensor in tensors(state)) else _cpu_seconds
    with clock() as taken:
        backward(loss_or_outputs(model, index, layer(fresh), labels))
    return taken[0]


@contextmanager
def _cpu_seconds() -> Iterator[list[float]]:
    taken: list[float] = []
    start = time.process_time()
    yield taken
    taken.append(max(time.process_time() - start, 1e-9))


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
