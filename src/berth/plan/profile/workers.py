"""Processes that measure together: k of them each take 1/k of the batch at the same time.

They are joined by gloo. Where k is larger than the cores, every core still works at once, each on 1/k of the batch:
the work of one of k units, with as many neighbours on the memory bus as the machine has cores.
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
from berth.plan.profile.document import LayerFacts
from berth.plan.profile.timing import Timing

UNIT_COUNTS = (1, 2, 4, 8)
_MOST_PROCESSES = 8
_SILENCE = timedelta(minutes=5)  # a layer may take long; a process that died does not answer at all
# glibc gives large blocks back to the system and faults them in again at every step, now and then: a layer's time has
# two values then. Allocators for training keep them, so these processes do too.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TOP_PAD_": str(2**28),
}
Report = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What the processes are to measure."""

    model: str
    batch: int
    repeats: int
    layers: tuple[LayerFacts, ...]
    processes: int
    input_shape: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def unit_counts(self) -> tuple[int, ...]:
        """Counts at which every unit still has an example."""
        return tuple(count for count in UNIT_COUNTS if count <= self.batch)


@dataclass
class Measured:
    """Computation, and seconds of synchronisation, by layer (its place) and unit count."""

    compute: dict[int, dict[int, Timing]] = field(default_factory=dict)
    all_reduce: dict[int, float] = field(default_factory=dict)
    pull_push: dict[int, dict[int, float]] = field(default_factory=dict)


def steps(order: Order) -> int:
    """How many times the report is called."""
    dense = sum(bool(layer.dense_bytes) for layer in order.layers)
    sparse = sum(bool(layer.touched_bytes) for layer in order.layers)
    return len(order.layers) + sparse + dense


def processes_here() -> int:
    """One for each core that this process may use, but at least two to talk to each other."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not every system can tell
        cores = os.cpu_count() or 1
    return max(2, min(_MOST_PROCESSES, cores))


def measure(order: Order, report: Report) -> Measured:
    """Runs the processes to the end; what goes wrong in one of them is raised here."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        messages = context.Queue()
        store = Path(folder, "store").as_uri()
        workers = [
            context.Process(target=_work, args=(rank, order, store, messages), daemon=True)
            for rank in range(order.processes)
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
    """What processes started inside inherit."""
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


def _result(messages: Any, workers: list[Any], report: Report) -> Measured:
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
        elif kind == "mistake":
            raise content
        elif kind == "bug":
            raise RuntimeError(f"a measuring process failed\n{content}")
        else:
            result: Measured = content
            return result


def _work(rank: int, order: Order, store: str, messages: Any) -> None:
    try:
        measured = _measure_as(
            rank, order, store, lambda text: messages.put(("step", text)) if rank == 0 else None
        )
        if rank == 0:
            messages.put(("result", measured))
    except InputError as error:
        messages.put(("mistake", InputError(error.what, where=error.where, hint=error.hint)))
    except Exception:  # noqa: BLE001 - handed to the parent, which raises it
        messages.put(("bug", traceback.format_exc()))


def _measure_as(rank: int, order: Order, store: str, report: Report) -> Measured:
    import torch
    import torch.distributed as dist

    from berth.zoo.load import load_model

    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=order.processes, timeout=_SILENCE
    )
    model = load_model(order.model, order.seed, input_shape=order.input_shape)
    measured = Measured()
    _measure_compute(rank, order, model, measured, report)
    del model
    _measure_data(rank, order, measured, report)
    dist.barrier()
    dist.destroy_process_group()
    return measured


def _measure_compute(rank: int, order: Order, model: Any, measured: Measured, report: Report) -> None:
    """Every layer at every k in turns, so that a busy moment spoils none of the k alone."""
    from berth.plan.profile.timing import chain_states, summed_up

    parts = {
        units: chain_states(model, order.batch // units, order.seed + rank)
        for units in order.unit_counts
        if rank < units
    }
    for index, layer in enumerate(order.layers):
        seconds = _in_turns(order, model, index, parts)
        measured.compute[index] = {
            units: _slowest(summed_up(seconds[units]) if units in parts else Timing(0.0, 0.0))
            for units in order.unit_counts
        }
        report(layer.name)


def _in_turns(order: Order, model: Any, index: int, parts: dict[int, Any]) -> dict[int, list[float]]:
    """Seconds of one layer by k; processes that a k does not need wait for the others."""
    import torch.distributed as dist

    from berth.plan.profile.timing import run_once

    seconds: dict[int, list[float]] = {units: [] for units in parts}
    for turn in range(1 + order.repeats):
        for units in order.unit_counts:
            dist.barrier()
            if units in parts:
                states, labels = parts[units]
                taken = run_once(model, index, states[index], labels)
                seconds[units] += [taken] if turn else []  # the first turn only warms up
    return seconds


def _measure_data(rank: int, order: Order, measured: Measured, report: Report) -> None:
    import torch.distributed as dist

    from berth.plan.profile.exchange import time_all_reduce, time_pull_push

    pair = dist.new_group([0, 1])
    if rank > 1:
        return
    for index, layer in enumerate(order.layers):
        if layer.dense_bytes:
            measured.all_reduce[index] = time_all_reduce(layer, order.repeats, pair)
            report(f"all-reduce of {layer.name}")
        if layer.touched_bytes:
            measured.pull_push[index] = time_pull_push(layer, order.unit_counts, order.repeats, rank)
            report(f"pull and push of {layer.name}")


def _slowest(timing: Timing) -> Timing:
    """The slowest of the processes decides when a batch is done."""
    import torch
    import torch.distributed as dist

    values = torch.tensor(timing, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return Timing(*values.tolist())
