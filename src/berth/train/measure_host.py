"""Measures `HostRates`: what a core of this machine does around the computation of a step, with the code that trains.

Everything is CPU time of the processes involved, which equals wall-clock time on a core of their own, and comes from
least squares over several batch and row sizes: seconds = calls, rows and bytes, each times a rate of zero or more.
Between two calls the caches are filled with other data, as the model does in a real step.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from berth.errors import InputError
from berth.plan.profile.host import HostRates, PerRow
from berth.plan.profile.layer_profile import short
from berth.plan.profile.machine import describe_core, torch_version
from berth.plan.threads import single_thread
from berth.train.data import Batch, ClickStream, Share
from berth.train.data.files import FileStream
from berth.train.local import LocalStore
from berth.train.measure_contention import compute_slowdown_at, row_slowdown
from berth.train.options import TrainOptions
from berth.train.servers import RemoteStore, Secret, ServerConfig, ServerProcess
from berth.train.session import Session
from berth.train.shm_allreduce import ShmAllReduce
from berth.train.sparse import SparseStore, TableSpec
from berth.train.stages.p2p import StageChannel
from berth.train.tables import Initialiser, adagrad
from berth.train.tables.memory import keep_freed_memory, reserve
from berth.workload.profile import Provenance
from berth.zoo.layered import tensors

ROWS = 1_000_000  # of the measured tables: far more than caches hold
WIDTHS = (16, 64)  # weights of a row
SIZES = (1_024, 16_384, 262_144)  # look-ups of a call; large ones exceed the caches
DISTINCT = (0.3, 0.9)  # share of them that differ
_FLUSH = 32 << 20  # bytes that a step of a model moves at least
Report = Callable[[str], None]
Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]


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


@dataclass(frozen=True)
class _Measured:
    """CPU seconds of one step: of this process, and of the servers together."""

    call: _Call
    servers: int
    own_s: float
    server_s: float


def measure_host(report: Report = lambda what: None, *, repeats: int = 7) -> HostRates:
    """Return the rates of this machine; takes some twenty seconds of CPU time."""
    keep_freed_memory()  # as training does
    with single_thread():
        report("tables in the worker")
        local = [_local(call, repeats) for call in _calls()]
        report("servers")
        new_s, fresh_s = _new_row_s(), fresh_byte_s()
        served = _served(repeats)
        report("the loop around a model")
        step_s, example_s = _loop()
        report("reading")
        decode = _decode()
        report("all-reduce")
        call_s, bytes_per_s = _all_reduce(repeats)
        report("rows on disk")
        disk = _disk(repeats)
        report("messages between stages")
        stage_call_s, stage_byte_s = _stage_messages(repeats)
        report("all cores at once")
        rows_slower, computing_slower = row_slowdown(), compute_slowdown_at()
    local_lookup, local_row, local_call = _fit([(one.own_s, one.call, 0) for one, _ in local])
    client_lookup, client_row, client_call = _fit([(one.own_s, one.call, one.servers) for one, _ in served])
    pull, pull_call = _fit_rows(
        [(pulled.server_s, pulled.server_s, one.call, one.servers) for one, pulled in served]
    )
    push, push_call = _fit_rows(
        [(one.server_s - pulled.server_s, one.server_s, one.call, one.servers) for one, pulled in served]
    )
    if not pull(4.0) or not push(4.0):
        raise InputError("this machine was too busy to measure servers", hint="try again when it is idle")
    note = f"one core of {describe_core()}, CPU time, median of {repeats}, torch {torch_version()}, {date.today()}"
    return HostRates(
        server_pull_s_per_row=pull,
        server_push_s_per_row=push,
        server_call_s=short(pull_call + push_call),
        client_row_s=client_row,
        client_lookup_s=client_lookup,
        client_call_s=short(client_call),
        local_row_s=local_row,
        local_lookup_s=local_lookup,
        local_call_s=local_call,
        new_row_s=new_s,
        fresh_byte_s=fresh_s,
        worker_step_s=short(step_s),
        worker_example_s=short(example_s),
        decode_bytes_per_s=decode,
        allreduce_call_s=short(call_s),
        allreduce_bytes_per_s=short(bytes_per_s),
        disk_row_s=short(disk),
        stage_call_s=short(stage_call_s),
        stage_byte_s=short(stage_byte_s),
        row_slowdown=rows_slower,
        compute_slowdown_at=computing_slower,
        source=Provenance("measured", note, date.today().year),
    )


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


def _local(call: _Call, repeats: int) -> tuple[_Measured, _Measured]:
    store = LocalStore()
    store.open([_spec(call.width)])
    _fill(store, call.width)
    both, pull = _steps(store, call, repeats, lambda: 0.0)
    store.close()
    return _Measured(call, 0, *both), _Measured(call, 0, *pull)


def _served(repeats: int) -> list[tuple[_Measured, _Measured]]:
    """Measure one and two servers, each table filled before."""
    found = []
    for count in (1, 2):
        secret = Secret.random()
        servers = [ServerProcess(ServerConfig(index=index, servers=count), secret) for index in range(count)]
        store = RemoteStore([server.address for server in servers], secret)
        try:
            pids = [server.pid for server in servers]
            store.open([_spec(width) for width in WIDTHS])
            for width in WIDTHS:
                _fill(store, width)
            for call in _calls():
                both, pull = _steps(store, call, repeats, partial(_cpu_s_of_all, pids))
                found.append((_Measured(call, count, *both), _Measured(call, count, *pull)))
        finally:
            store.close()
            for server in servers:
                server.stop()
    return found


def _fill(store: SparseStore, width: int) -> None:
    for first in range(0, ROWS, 1 << 16):
        store.pull(_spec(width).name, np.arange(first, min(ROWS, first + (1 << 16)), dtype=np.uint64))
    store.end_step(0)


def _steps(
    store: SparseStore, call: _Call, repeats: int, others: Callable[[], float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the CPU seconds of this process and of others, of whole steps, and of pulls alone."""
    name = _spec(call.width).name
    gradients = np.full((len(call.keys), call.width), 1e-4, np.float32)
    out = np.empty_like(gradients)
    flushed = np.zeros(_FLUSH // 8)
    waiting_s = _waiting_s(store, others)
    times = max(1, 16_384 // len(call.keys))  # more of the small ones: clocks of other processes are coarse
    whole: list[tuple[float, float]] = []
    pulls: list[tuple[float, float]] = []
    for turn in range(1 + repeats):
        for push, kept in ((True, whole), (False, pulls)):
            own = there = 0.0
            for number in range(times):
                keys = call.at((2 * turn + push) * times + number)
                flushed += 1.0
                before, started = others(), time.process_time()
                if push:
                    store.prefetch(name, keys)
                store.pull(name, keys, out)
                if push:
                    store.push(name, keys, gradients)
                    store.end_step(turn)
                own += time.process_time() - started
                if push and isinstance(store, RemoteStore):
                    store.statistics()  # waits until servers have done
                there += max(0.0, others() - before - (waiting_s if push else 0.0))
            if turn:  # the first is a warm-up
                kept.append((own / times, there / times))
    return _medians(whole), _medians(pulls)


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)


def _new_row_s(rows: int = 500_000) -> PerRow:
    """Return the CPU seconds that a row costs more in the step that creates it, in memory that was used before."""
    _creation_s(WIDTHS[0], 65_536)  # a warm-up
    narrow, wide = (statistics.median(_creation_s(width, rows) for _ in range(3)) for width in WIDTHS)
    byte = max(0.0, wide - narrow) / (4 * (WIDTHS[1] - WIDTHS[0]))
    return PerRow(short(max(0.0, narrow - 4 * WIDTHS[0] * byte)), short(byte))


def _creation_s(width: int, rows: int, part: int = 32_768) -> float:
    """Return how much longer the first steps of a table take than the same again, per row."""
    name = _spec(width).name
    store = LocalStore()
    store.open([_spec(width)])
    table = store.table(name)
    keys = np.random.default_rng(1).integers(1, 1 << 62, rows).astype(np.uint64)
    gradients = np.full((part, width), 1e-4, np.float32)
    seconds = []
    for turn in range(
        3
    ):  # the first one takes memory, the second one reuses it, the third one creates nothing
        if turn == 1:
            table.store.remove(keys.view(np.int64))
        started = time.process_time()
        for first in range(0, rows - part + 1, part):
            store.pull(name, keys[first : first + part])
            store.push(name, keys[first : first + part], gradients)
            store.end_step(turn)
        seconds.append(time.process_time() - started)
    store.close()
    return max(0.0, seconds[1] - seconds[2]) / (rows // part * part)


def fresh_byte_s(size: int = 1 << 30) -> float:
    """Return the CPU seconds of a byte of a table's memory when it is touched first.

    It varies: some virtual machines get their memory from the host only then, at less than a gigabyte per second.
    """
    column = reserve(size, np.uint8)
    started = time.process_time()
    column[:: 1 << 12] = 1
    return short((time.process_time() - started) / size)


def _waiting_s(store: SparseStore, others: Callable[[], float]) -> float:
    """Return the CPU seconds of servers that answer a request without rows."""
    if not isinstance(store, RemoteStore):
        return 0.0
    before = others()
    for _ in range(50):
        store.statistics()
    return (others() - before) / 50


def _fit(measured: Sequence[tuple[float, _Call, int]]) -> tuple[PerRow, PerRow, float]:
    """Return rates per look-up, per distinct row and per server."""
    rows = [
        [
            len(call.keys),
            len(call.keys) * call.row_bytes,
            call.rows,
            call.rows * call.row_bytes,
            max(1, servers),
        ]
        for _, call, servers in measured
    ]
    found = _least_squares(rows, [seconds for seconds, _, _ in measured])
    return PerRow(*found[:2]), PerRow(*found[2:4]), found[4]


def _fit_rows(measured: Sequence[tuple[float, float, _Call, int]]) -> tuple[PerRow, float]:
    """Return rates per distinct row and per server from seconds, and the seconds to which errors are relative."""
    rows = [[call.rows, call.rows * call.row_bytes, max(1, servers)] for _, _, call, servers in measured]
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


class _Line(nn.Module):
    """The smallest model with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(1, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = self.weight(inputs["x"])
        return scores


class _Ready:
    """A source whose batches are ready."""

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "ready"}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        inputs, labels = {"x": torch.zeros(batch, 1)}, torch.zeros(batch, dtype=torch.int64)
        while True:
            yield Batch(inputs, labels, batch)

    def position(self, step: int) -> Mapping[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        pass


def _loop() -> tuple[float, float]:
    """Return the CPU seconds per step and per example of a training without a model to speak of."""
    sizes, seconds = (64, 16_384), []
    for size in sizes:
        session = Session(_Line(), _Ready(), TrainOptions(batch=size))
        steps = session.steps()
        taken = []
        for _ in islice(steps, 20):
            pass
        for _ in range(5):
            started = time.process_time()
            for _ in islice(steps, 40):
                pass
            taken.append((time.process_time() - started) / 40)
        steps.close()
        session.close()
        seconds.append(statistics.median(taken))
    example = max(0.0, (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]))
    return max(0.0, seconds[0] - example * sizes[0]), example


def _decode(examples: int = 32_768, batch: int = 4_096) -> dict[str, float]:
    """Return the bytes of tensors that a core reads from click logs per second, by format."""
    import polars as pl

    keys, dense, _, labels = ClickStream().draw(0, examples)
    columns: dict[str, Any] = {"label": labels}
    columns |= {
        f"I{number + 1}": np.abs(column * 50).astype(np.int64) for number, column in enumerate(dense.T)
    }
    ids = {f"C{number + 1}": column for number, column in enumerate(keys.T)}
    rates = {}
    with tempfile.TemporaryDirectory() as folder:
        frame = pl.DataFrame(columns | ids)
        frame.write_parquet(Path(folder, "clicks.parquet"))
        text = [
            pl.Series(name, [f"{one & 0xFFFFFFFF:08x}" for one in column]) for name, column in ids.items()
        ]
        frame.with_columns(text).write_csv(Path(folder, "clicks.tsv"), separator="\t", include_header=False)
        for name in ("parquet", "tsv"):
            stream = FileStream(str(Path(folder, f"clicks.{name}")), epochs=None)
            batches = stream.batches(batch, 0, Share(), 0)
            size = sum(_nbytes(one) for one in islice(batches, examples // batch))
            taken = []
            for _ in range(3):
                started = time.process_time()
                for _ in islice(batches, examples // batch):
                    pass
                taken.append(time.process_time() - started)
            rates[name] = short(size / statistics.median(taken))
    return rates


def _nbytes(batch: Batch) -> int:
    return sum(part.numel() * part.element_size() for part in tensors((batch.inputs, batch.labels)))


def _all_reduce(repeats: int) -> tuple[float, float]:
    """Return CPU seconds per call and bytes per CPU second of two processes that sum gradients."""
    sizes = (1_024, 2_000_000)  # gradients
    memory = os.memfd_create("berth-rates")
    os.ftruncate(memory, 2 * 2 * 4 * (max(sizes) + 16))
    ends = socket.socketpair()
    child = os.fork()
    rank = int(child == 0)
    try:
        medians = _all_reduce_s(ShmAllReduce(rank, {1 - rank: ends[rank]}, memory), sizes, 5 * repeats)
    finally:
        if child == 0:
            os._exit(0)
        for end in ends:
            end.close()  # a child that still waits ends with an error
        os.waitpid(child, 0)
        os.close(memory)
    byte = max(medians[1] - medians[0], 1e-9) / (4 * (sizes[1] - sizes[0]))
    return max(0.0, medians[0] - byte * 4 * sizes[0]), 1 / byte


def _all_reduce_s(sums: ShmAllReduce, sizes: Sequence[int], repeats: int) -> list[float]:
    """Return the median CPU seconds of an all-reduce of each size."""
    medians = []
    for size in sizes:
        gradients = [torch.zeros(size)]
        taken = []
        for turn in range(1 + repeats):
            started = time.process_time()
            sums.all_reduce(gradients, [0.0])
            taken += [time.process_time() - started] if turn else []
        medians.append(statistics.median(taken))
    return medians


def _stage_messages(repeats: int) -> tuple[float, float]:
    """Return the CPU seconds of one process to send a message to another and receive one, per call and per byte."""
    sizes = (1_024, 1 << 20)  # numbers of a message
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank = int(child == 0)
        try:
            medians = _exchange_s(rank, Path(folder, "peers"), sizes, 5 * repeats)
        finally:
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    byte = max(medians[1] - medians[0], 0.0) / (2 * 4 * (sizes[1] - sizes[0]))
    return max(0.0, medians[0] - byte * 2 * 4 * sizes[0]), byte


def _exchange_s(rank: int, store: Path, sizes: Sequence[int], repeats: int) -> list[float]:
    """Return the median CPU seconds of this process, over all its threads, to send and receive each size."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    channel, medians = StageChannel(), []
    for size in sizes:
        message = {"state": torch.zeros(size), "labels": torch.zeros(16), "weight": 1.0, "examples": 16}
        taken = []
        for turn in range(2 + repeats):
            started = time.process_time()
            if rank:
                channel.receive(0)
            channel.send(1 - rank, message)
            if not rank:
                channel.receive(1)
            channel.flush()
            taken += [time.process_time() - started] if turn > 1 else []
        medians.append(statistics.quantiles(taken, n=4)[0])  # other programs only make it longer
    dist.destroy_process_group()
    return medians


def _disk(repeats: int, width: int = 16, rows: int = 200_000) -> float:
    """Return the CPU seconds that a row costs more if it has to be read from disk and another written back."""
    random = np.random.default_rng(0)
    name = _spec(width).name
    seconds, missed = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for memory in (None, rows * (width * 4 + 16)):
            store = LocalStore(memory_bytes=memory, folder=folder if memory else None)
            store.open([_spec(width)])
            for first in range(0, rows, 1 << 15):
                store.pull(name, np.arange(first, min(rows, first + (1 << 15)), dtype=np.uint64))
            table, taken = store.table(name), []
            before = table.counts.missed
            for _ in range(repeats):
                keys = random.choice(rows, 8_192, replace=False).astype(np.uint64)
                started = time.process_time()
                store.pull(name, keys)
                store.push(name, keys, np.zeros((len(keys), width), np.float32))
                taken.append(time.process_time() - started)
            missed = (table.counts.missed - before) / repeats
            seconds.append(statistics.median(taken))
            store.close()
    return max(0.0, seconds[1] - seconds[0]) / max(missed, 1.0)


def _cpu_s_of_all(pids: Sequence[int]) -> float:
    return sum(map(cpu_s_of, pids))


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds of another process, over all its threads."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9
