"""Measures what the cores of a machine share: how much slower one gets while all others do the same work.

Memory bandwidth and the last cache are shared, so work on rows, and computing on more data than the caches hold, takes
longer on a busy machine. The speed of a core also changes with time, above all in a virtual machine, by as much as is
to be measured. So each kind of work is timed in many short rounds, in each of them both alone and while others work: a
ratio is of two times that are a fraction of a second apart, and the median is taken over the ratios of all rounds.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
ROUNDS = 9
_LEAST_S = 0.06  # of CPU time for each of the two times of a round
_START_S = 0.01  # until other cores are at work
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times longer work takes while all other cores do the same; at least 1."""

    median: float
    low: float  # quartiles of the rounds
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Slowdown:
        """Summarise the ratios of all rounds."""
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return cls(*(short(max(1.0, ratio)) for ratio in (median, low, high)))


@dataclass(frozen=True, slots=True)
class Contention:
    """Slowdowns of work on rows, and of a forward and backward pass by the bytes that it moves."""

    rows: Slowdown
    computing: dict[float, Slowdown]

    @property
    def compute_slowdown_at(self) -> dict[float, float]:
        """The medians; they never fall with the bytes that a pass moves."""
        found, largest = {}, 1.0
        for size, slowdown in self.computing.items():
            largest = max(largest, slowdown.median)
            found[size] = largest
        return found

    def __str__(self) -> str:
        kinds = [self.rows, *self.computing.values()]
        low, high = min(one.low for one in kinds), max(one.high for one in kinds)
        return f"{low:.2f} to {high:.2f} times longer while all cores are busy"


def measure_contention(cores: int | None = None, rounds: int = ROUNDS) -> Contention:
    """Return the slowdowns of a machine of this many cores, by default of those that this process may use."""
    others = (cores or len(os.sched_getaffinity(0))) - 1
    makers: list[Callable[[], Work]] = [_row_work, *(partial(_compute_work, batch) for batch in BATCHES)]
    if others < 1:
        rows, *computing = [Slowdown(1.0, 1.0, 1.0)] * len(makers)
    else:
        rows, *computing = map(Slowdown.of, _ratios(makers, others, rounds))
    return Contention(rows, dict(zip(map(_moved_bytes, BATCHES), computing, strict=True)))


def _ratios(makers: Sequence[Callable[[], Work]], others: int, rounds: int) -> list[list[float]]:
    """Return the ratios of all rounds, of each kind of work."""
    found: list[list[float]] = [[] for _ in makers]
    with ExitStack() as stack:
        beside = [stack.enter_context(_paused(make, others)) for make in makers]
        works = [make() for make in makers]
        for work in works:
            work()
        for number in range(rounds):
            for work, companions, ratios in zip(works, beside, found, strict=True):
                ratios.append(_ratio(work, companions, number % 2 == 0))
    return found


def _ratio(work: Work, companions: _Companions, alone_first: bool) -> float:
    """Return the time beside others over the time alone, which are measured one after the other."""
    alone = _cpu_s(work) if alone_first else 0.0
    with companions.at_work():
        together = _cpu_s(work)
    return together / (alone or _cpu_s(work))


def _moved_bytes(batch: int) -> float:
    """Return the bytes of inputs, outputs and weights, each read or written three times in a step."""
    pairs = pairwise(WIDTHS)
    return float(sum(3 * 4 * (batch * (wide + narrow) + wide * narrow) for wide, narrow in pairs))


def _cpu_s(work: Work) -> float:
    """Return the median CPU seconds of a piece of work."""
    seconds: list[float] = []
    while sum(seconds) < _LEAST_S or len(seconds) < 3:
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


@dataclass(frozen=True, slots=True)
class _Companions:
    """Processes that repeat some work while they are not stopped."""

    pids: list[int]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let them work until the end of the block."""
        self._signal(signal.SIGCONT)
        time.sleep(_START_S)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)
            time.sleep(_START_S)

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            os.kill(pid, number)


@contextmanager
def _paused(make: Callable[[], Work], count: int) -> Iterator[_Companions]:
    """Start processes that have done the work once, and are stopped."""
    pids: list[int] = []
    receiver, sender = os.pipe()
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                _repeat(make, sender)
            pids.append(child)
        os.close(sender)  # or reading would wait for companions that have ended
        for _ in pids:
            if not os.read(receiver, 1):
                raise RuntimeError("a companion of the measurement has ended")
        companions = _Companions(pids)
        with companions.at_work():
            pass
        yield companions
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(receiver)


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
