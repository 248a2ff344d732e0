"""Measures layers with several processes: k of them run 1/k of the batch each at the same time.

The processes are connected by gloo. If k exceeds the number of cores, every core still runs 1/k of the batch: the work
of one of k replicas, with as many neighbours on the memory bus as the machine has cores.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from berth.errors import InputError
from berth.plan.profile.layer_profile import LayerFacts
from berth.plan.profile.timing import Timing

REPLICA_COUNTS = (1, 2, 4, 8)
_MAX_PROCESSES = 8
_TIMEOUT = timedelta(minutes=5)  # a layer may take long
# glibc sometimes returns large blocks to the system and faults them in again at every step, which makes times bimodal.
# Training allocators keep them, so these processes do too.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TOP_PAD_": str(2**28),
}
Report = Callable[[str], None]


@dataclass(frozen=True)
class ProfilingTask:
    """What the processes measure."""

    model: str
    batch: int
    repeats: int
    layers: tuple[LayerFacts, ...]
    processes: int
    input_shape: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def replica_counts(self) -> tuple[int, ...]:
        """Counts at which every replica has at least one example."""
        return tuple(count for count in REPLICA_COUNTS if count <= self.batch)


@dataclass
class Measurements:
    """Computation and synchronisation times, by layer index and replica count."""

    compute: dict[int, dict[int, Timing]] = field(default_factory=dict)
    all_reduce: dict[int, float] = field(default_factory=dict)
    pull_push: dict[int, dict[int, float]] = field(default_factory=dict)


def steps(task: ProfilingTask) -> int:
    """Return how many times the report is called."""
    dense = sum(bool(layer.dense_bytes) for layer in task.layers)
    sparse = sum(bool(layer.touched_bytes) for layer in task.layers)
    return len(task.layers) + sparse + dense


def processes_here() -> int:
    """Return the number of usable cores, but at least two processes to exchange data."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        cores = os.cpu_count() or 1
    return max(2, min(_MAX_PROCESSES, cores))


def measure(task: ProfilingTask, report: Report) -> Measurements:
    """Run the processes to the end; raise an error of any of them."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        messages = context.Queue()
        store = Path(folder, "store").as_uri()
        workers = [
            context.Process(target=_work, args=(rank, task, store, messages), daemon=True)
            for rank in range(task.processes)
        ]
        with environment(KEEP_MEMORY):
            for worker in workers:
                worker.start()
        try:
            return _result(messages, workers, report)
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside the block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _result(messages: Any, workers: list[Any], report: Report) -> Measurements:
    while True:
        try:
            kind, content = messages.get(timeout=1.0)
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                raise InputError(
                    "a measuring process died",
                    hint="too little memory (try a smaller batch)? or a script of yours that calls this"
                    " without `if __name__ == '__main__':`",
                ) from None
            continue
        if kind == "step":
            report(content)
        elif kind == "input_error":
            raise content
        elif kind == "bug":
            raise RuntimeError(f"a measuring process failed\n{content}")
        else:
            result: Measurements = content
            return result


def _work(rank: int, task: ProfilingTask, store: str, messages: Any) -> None:
    try:
        measured = _measure_as(
            rank, task, store, lambda text: messages.put(("step", text)) if rank == 0 else None
        )
        if rank == 0:
            messages.put(("result", measured))
    except InputError as error:
        messages.put(("input_error", InputError(error.what, where=error.where, hint=error.hint)))
    except Exception:  # noqa: BLE001 - sent to the parent, which raises it
        messages.put(("bug", traceback.format_exc()))


def _measure_as(rank: int, task: ProfilingTask, store: str, report: Report) -> Measurements:
    import torch
    import torch.distributed as dist

    from berth.zoo.load import load_model

    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=task.processes, timeout=_TIMEOUT)
    model = load_model(task.model, task.seed, input_shape=task.input_shape)
    measured = Measurements()
    _measure_compute(rank, task, model, measured, report)
    del model
    _measure_data(rank, task, measured, report)
    dist.barrier()
    dist.destroy_process_group()
    return measured


def _measure_compute(
    rank: int, task: ProfilingTask, model: Any, measured: Measurements, report: Report
) -> None:
    """Measure every layer, alternating between the k, so that a busy moment does not affect one k only."""
    from berth.plan.profile.timing import chain_states, summarize

    parts = {
        replicas: chain_states(model, task.batch // replicas, task.seed + rank)
        for replicas in task.replica_counts
        if rank < replicas
    }
    for index, layer in enumerate(task.layers):
        seconds = _alternating(task, model, index, parts)
        measured.compute[index] = {
            replicas: _slowest(summarize(seconds[replicas]) if replicas in parts else Timing(0.0, 0.0))
            for replicas in task.replica_counts
        }
        report(layer.name)


def _alternating(
    task: ProfilingTask, model: Any, index: int, parts: dict[int, Any]
) -> dict[int, list[float]]:
    """Return the seconds of one layer by k; processes that a k does not need wait for the others."""
    import torch.distributed as dist

    from berth.plan.profile.timing import run_once

    seconds: dict[int, list[float]] = {replicas: [] for replicas in parts}
    for turn in range(1 + task.repeats):
        for replicas in task.replica_counts:
            dist.barrier()
            if replicas in parts:
                states, labels = parts[replicas]
                taken = run_once(model, index, states[index], labels)
                seconds[replicas] += [taken] if turn else []  # the first turn is a warm-up
    return seconds


def _measure_data(rank: int, task: ProfilingTask, measured: Measurements, report: Report) -> None:
    import torch.distributed as dist

    from berth.plan.profile.exchange import time_all_reduce, time_pull_push

    pair = dist.new_group([0, 1])
    if rank > 1:
        return
    for index, layer in enumerate(task.layers):
        if layer.dense_bytes:
            measured.all_reduce[index] = time_all_reduce(layer, task.repeats, pair)
            report(f"all-reduce of {layer.name}")
        if layer.touched_bytes:
            measured.pull_push[index] = time_pull_push(layer, task.replica_counts, task.repeats, rank)
            report(f"pull and push of {layer.name}")


def _slowest(timing: Timing) -> Timing:
    """Return the timing of the slowest process, which determines when a batch is done."""
    import torch
    import torch.distributed as dist

    values = torch.tensor(timing, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return Timing(*values.tolist())
