"""Measures pulling and pushing rows: of tables in the worker, and of one and two servers.

Rates come from least squares over several batch and row sizes: seconds = calls, rows and bytes, each times a rate of
zero or more. Between two calls the caches are filled with other data, as the model does in a real step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from berth.errors import InputError
from berth.plan.profile.host import PerRow
from berth.plan.profile.layer_profile import short
from berth.train.device_store import local_store, store_on_device
from berth.train.devices import CPU
from berth.train.measure.disturbance import cpu_s_of
from berth.train.servers import RemoteStore, Secret, ServerConfig, ServerProcess
from berth.train.sparse import SparseStore, TableSpec
from berth.train.tables import Initialiser, adagrad

ROWS = 1_000_000  # of the measured tables: far more than caches hold
WIDTHS = (16, 64)  # weights of a row
SIZES = (1_024, 16_384, 262_144)  # look-ups of a call; large ones exceed the caches
DISTINCT = (0.3, 0.9)  # share of them that differ
_FLUSH = 32 << 20  # bytes that a step of a model moves at least
Keys = NDArray[np.uint64]
Pair = tuple[float, float]


@dataclass(frozen=True)
class LocalRates:
    """Of tables in the worker's process."""

    row_s: PerRow
    lookup_s: PerRow
    call_s: float


@dataclass(frozen=True)
class ServedRates:
    """Of a worker that pulls from and pushes to servers, and of the servers."""

    client_row_s: PerRow
    client_lookup_s: PerRow
    client_call_s: float
    pull_s_per_row: PerRow
    push_s_per_row: PerRow
    server_call_s: float


@dataclass(frozen=True)
class _Call:
    """One measured combination of sizes."""

    width: int
    keys: Keys
    rows: int  # distinct keys

    @property
    def row_bytes(self) -> int:
        return 4 * self.width

    def at(self, turn: int) -> Keys:
        """Return other keys for every turn, of which as many differ: their rows are not in any cache."""
        return (self.keys + np.uint64(turn * 104_729)) % np.uint64(ROWS)


@dataclass
class _Measured:
    """CPU seconds of one call in every turn, of this process and of all servers: whole steps, and pulls alone."""

    call: _Call
    servers: int
    steps: list[Pair] = field(default_factory=list)
    pulls: list[Pair] = field(default_factory=list)

    @property
    def step_s(self) -> Pair:
        return _medians(self.steps)

    @property
    def pull_s(self) -> Pair:
        return _medians(self.pulls)


def local_rates(repeats: int, device: torch.device = CPU) -> LocalRates:
    """Measure tables in this process; of an accelerator, with rows copied to it and gradients taken from it."""
    store = local_store(device)
    store.open([table_spec(width) for width in WIDTHS])
    _fill(store)
    measured = _measure(store, 0, repeats, lambda: 0.0)
    store.close()
    lookup, row, call_s = _fit([(one.step_s[0], one) for one in measured])
    return LocalRates(row, lookup, call_s)


def served_rates(repeats: int) -> ServedRates:
    """Measure one and two servers, whose tables are filled before."""
    measured = [one for count in (1, 2) for one in _served(count, repeats)]
    client_lookup, client_row, client_call_s = _fit([(one.step_s[0], one) for one in measured])
    pull, pull_call_s = _fit_rows([(one.pull_s[1], one.pull_s[1], one) for one in measured])
    push, push_call_s = _fit_rows([(one.step_s[1] - one.pull_s[1], one.step_s[1], one) for one in measured])
    if not pull(4.0) or not push(4.0):
        raise InputError("this machine was too busy to measure servers", hint="try again when it is idle")
    call_s = short(pull_call_s + push_call_s)
    return ServedRates(client_row, client_lookup, client_call_s, pull, push, call_s)


def table_spec(width: int) -> TableSpec:
    """Return a table with AdaGrad and rows of this many weights."""
    return TableSpec(f"rows{width}", width, adagrad(), Initialiser())


def _served(count: int, repeats: int) -> list[_Measured]:
    secret = Secret.random()
    servers = [ServerProcess(ServerConfig(index=index, servers=count), secret) for index in range(count)]
    store = RemoteStore([server.address for server in servers], secret)
    try:
        store.open([table_spec(width) for width in WIDTHS])
        _fill(store)
        return _measure(store, count, repeats, lambda: sum(cpu_s_of(server.pid) for server in servers))
    finally:
        store.close()
        for server in servers:
            server.stop()


def _fill(store: SparseStore) -> None:
    for width in WIDTHS:
        for first in range(0, ROWS, 1 << 16):
            keys = np.arange(first, min(ROWS, first + (1 << 16)), dtype=np.uint64)
            store.pull(table_spec(width).name, keys)
        store.end_step(0)


def _calls() -> list[_Call]:
    random = np.random.default_rng(0)
    calls = []
    for width in WIDTHS:
        for size in SIZES:
            for share in DISTINCT:
                chosen = random.choice(ROWS, max(1, int(size * share)), replace=False).astype(np.uint64)
                keys = np.concatenate([chosen, random.choice(chosen, size - len(chosen))])
                calls.append(_Call(width, random.permutation(keys), len(chosen)))
    return calls


def _spec(width: int) -> TableSpec:
    return TableSpec(f"rows{width}", width, adagrad(), Initialiser())


def _measure(
    store: SparseStore, servers: int, repeats: int, servers_s: Callable[[], float]
) -> list[_Measured]:
    """Return all calls, each measured once in every turn after a first one that does not count."""
    measured = [_Measured(call, servers) for call in _calls()]
    idle_s = _idle_request_s(store, servers_s)
    flushed = np.zeros(_FLUSH // 8)
    largest = {width: np.full((max(SIZES), width), 1e-4, np.float32) for width in WIDTHS}
    out = {width: np.empty_like(gradients) for width, gradients in largest.items()}
    device = getattr(store, "device", CPU)
    on_device = {width: torch.from_numpy(gradients).to(device) for width, gradients in largest.items()}
    for turn in range(1 + repeats):
        for one in measured:
            size, width = len(one.call.keys), one.call.width
            step = _Step(
                store, one.call, largest[width][:size], on_device[width][:size], out[width][:size], flushed,
                servers_s, idle_s,
            )  # fmt: skip
            for push, kept in ((True, one.steps), (False, one.pulls)):
                pair = step.seconds(turn, push)
                if turn:
                    kept.append(pair)
    return measured


@dataclass(frozen=True)
class _Step:
    """A step of one call, with buffers for it."""

    store: SparseStore
    call: _Call
    gradients: NDArray[np.float32]
    on_device: torch.Tensor  # the same gradients, where the device of the store is
    out: NDArray[np.float32]
    flushed: NDArray[np.float64]
    servers_s: Callable[[], float]
    idle_s: float

    def seconds(self, turn: int, push: bool) -> Pair:
        """Return CPU seconds of this process and of servers; of more runs if short, as clocks of others are coarse."""
        times = max(1, 16_384 // len(self.call.keys))
        own = there = 0.0
        for number in range(times):
            keys = self.call.at((2 * turn + push) * times + number)
            self.flushed[:] += 1.0
            before, started = self.servers_s(), time.process_time()
            self._run(keys, turn, push)
            own += time.process_time() - started
            if push and isinstance(self.store, RemoteStore):
                self.store.statistics()  # waits until servers have done
            there += max(0.0, self.servers_s() - before - (self.idle_s if push else 0.0))
        return own / times, there / times

    def _run(self, keys: Keys, turn: int, push: bool) -> None:
        name = table_spec(self.call.width).name
        if push:
            self.store.prefetch(name, keys)
        there = store_on_device(self.store, self.on_device.device)
        if there is not None:
            there.pull_to_device(name, keys)
        else:
            self.store.pull(name, keys, self.out)
        if not push:
            return
        if there is not None:
            there.push_from_device(name, keys, self.on_device)
        else:
            self.store.push(name, keys, self.gradients)
        self.store.end_step(turn)


def _idle_request_s(store: SparseStore, servers_s: Callable[[], float]) -> float:
    """Return the CPU seconds of servers that answer a request without rows."""
    if not isinstance(store, RemoteStore):
        return 0.0
    before = servers_s()
    for _ in range(50):
        store.statistics()
    return (servers_s() - before) / 50


def _medians(pairs: Sequence[Pair]) -> Pair:
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)


def _fit(measured: Sequence[tuple[float, _Measured]]) -> tuple[PerRow, PerRow, float]:
    """Return rates per look-up, per distinct row and per server."""
    rows = []
    for _, one in measured:
        lookups, distinct, size = len(one.call.keys), one.call.rows, one.call.row_bytes
        rows.append([lookups, lookups * size, distinct, distinct * size, max(1, one.servers)])
    found = _least_squares(rows, [seconds for seconds, _ in measured])
    return PerRow(*found[:2]), PerRow(*found[2:4]), found[4]


def _fit_rows(measured: Sequence[tuple[float, float, _Measured]]) -> tuple[PerRow, float]:
    """Return rates per distinct row and per server from seconds, and the seconds to which errors are relative."""
    rows = [
        [one.call.rows, one.call.rows * one.call.row_bytes, max(1, one.servers)] for _, _, one in measured
    ]
    found = _least_squares(rows, [one[0] for one in measured], [one[1] for one in measured])
    return PerRow(*found[:2]), found[2]


def _least_squares(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], relative_to: Sequence[float] | None = None
) -> list[float]:
    """Return rates of zero or more with the smallest errors, relative to the seconds themselves or to others."""
    from scipy.optimize import nnls

    weights = 1 / np.maximum(np.array(seconds if relative_to is None else relative_to), 1e-9)
    found, _ = nnls(np.array(rows, dtype=np.float64) * weights[:, None], np.array(seconds) * weights)
    return [short(float(value)) for value in found]
