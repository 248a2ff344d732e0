"""Measures what the cores of a machine share: how much slower one gets while all others do the same work.

Memory bandwidth and the last cache are shared, so work on rows, and computing on more data than the caches hold, takes
longer on a busy machine. Each kind of work is timed alone and while every other core repeats it.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from berth.plan.profile.layer_profile import short
from berth.train.local import LocalStore
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, adagrad

ROWS, WIDTH, LOOKUPS = 1_000_000, 16, 100_000  # more rows than caches hold
WIDTHS = (512, 256, 128)
BATCHES = (64, 1_024, 8_192)
_LEAST_S = 0.3  # of CPU time for each measurement
Work = Callable[[], object]


def row_slowdown(cores: int | None = None) -> float:
    """Return the slowdown of pulling and pushing rows."""
    return _slowdown(_row_work, cores)


def compute_slowdown_at(cores: int | None = None) -> dict[float, float]:
    """Return the slowdown of a forward and backward pass by the bytes that it moves; it never falls."""
    found: dict[float, float] = {}
    largest = 1.0
    for batch in BATCHES:
        largest = max(largest, _slowdown(partial(_compute_work, batch), cores))
        found[_moved_bytes(batch)] = largest
    return found


def _moved_bytes(batch: int) -> float:
    """Return the bytes of inputs, outputs and weights, each read or written three times in a step."""
    pairs = pairwise(WIDTHS)
    return float(sum(3 * 4 * (batch * (wide + narrow) + wide * narrow) for wide, narrow in pairs))


def _slowdown(make: Callable[[], Work], cores: int | None) -> float:
    others = (cores or len(os.sched_getaffinity(0))) - 1
    if others < 1:
        return 1.0
    work = make()
    work()
    alone = _cpu_s(work)
    with _repeated(make, others):
        together = _cpu_s(work)
    return short(max(1.0, together / alone))


def _cpu_s(work: Work) -> float:
    """Return the median CPU seconds of a piece of work."""
    seconds: list[float] = []
    while sum(seconds) < _LEAST_S or len(seconds) < 5:
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


@contextmanager
def _repeated(make: Callable[[], Work], count: int) -> Iterator[None]:
    """Let other processes repeat the work until the end of the block; each has begun before it."""
    children: list[int] = []
    receiver, sender = os.pipe()
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                _repeat(make, sender)
            children.append(child)
        for _ in children:
            os.read(receiver, 1)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(receiver)
        os.close(sender)


def _repeat(make: Callable[[], Work], ready: int) -> None:
    """Work until killed; never returns to the caller's code."""
    try:
        parent = os.getppid()
        work = make()
        work()
        os.write(ready, b".")
        while os.getppid() == parent:
            work()
    finally:
        os._exit(1)


def _row_work() -> Work:
    store = LocalStore()
    spec = TableSpec("shared", WIDTH, adagrad(), Initialiser())
    store.open([spec])
    random = np.random.default_rng(os.getpid())
    store.pull(spec.name, np.arange(ROWS, dtype=np.uint64))
    gradients = np.full((LOOKUPS, WIDTH), 1e-4, np.float32)

    def work() -> None:
        keys = random.integers(0, ROWS, LOOKUPS).astype(np.uint64)
        store.pull(spec.name, keys)
        store.push(spec.name, keys, gradients)
        store.end_step(0)

    return work


def _compute_work(batch: int) -> Work:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(WIDTHS):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    model, inputs = nn.Sequential(*layers), torch.ones(batch, WIDTHS[0], requires_grad=True)

    def work() -> None:
        model(inputs).sum().backward()

    return work
