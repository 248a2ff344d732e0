"""Measures the layers of a model on one core of this machine, in a process of its own.

Every layer runs alone at each batch size, then the whole model does: layers that run one after the other find other
data in the caches than a layer that runs alone. Rows of tables are not looked up here: what that costs depends on
where the tables are (`HostRates`).
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from berth.errors import InputError
from berth.plan.profile.layer_profile import LayerFacts
from berth.plan.profile.timing import Timing

# glibc sometimes returns large blocks to the system and faults them in again at every step, which makes times bimodal.
# Training allocators keep them, so these processes do too.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(2**28),
}
Report = Callable[[str], None]


@dataclass(frozen=True)
class ProfilingTask:
    """What the process measures."""

    model: str
    batch: int
    batches: tuple[int, ...]
    repeats: int
    layers: tuple[LayerFacts, ...]
    input_shape: tuple[int, ...] | None = None
    seed: int = 0
    place: str = "cpu"  # torch device
    register: Callable[[], object] | None = None  # of a backend, called in the process before anything else


@dataclass
class Measurements:
    """Seconds of each layer and of the whole model by batch, and of each layer's optimiser step."""

    layers: list[list[Timing]] = field(default_factory=list)
    whole: list[Timing] = field(default_factory=list)
    step: list[Timing] = field(default_factory=list)


def steps(task: ProfilingTask) -> int:
    """Return how many times the report is called."""
    return len(task.batches)


def measure(task: ProfilingTask, report: Report) -> Measurements:
    """Run the process to the end; raise its error."""
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    worker = context.Process(target=_work, args=(task, messages), daemon=True)
    with environment(KEEP_MEMORY):
        worker.start()
    try:
        return _result(messages, worker, report)
    finally:
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


def _result(messages: Any, worker: Any, report: Report) -> Measurements:
    while True:
        try:
            kind, content = messages.get(timeout=1.0)
        except queue.Empty:
            if worker.exitcode:
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


def _work(task: ProfilingTask, messages: Any) -> None:
    try:
        messages.put(("result", _measured(task, lambda text: messages.put(("step", text)))))
    except InputError as error:
        messages.put(("input_error", InputError(error.what, where=error.where, hint=error.hint)))
    except Exception:  # noqa: BLE001 - sent to the parent, which raises it
        messages.put(("bug", traceback.format_exc()))


def _measured(task: ProfilingTask, report: Report) -> Measurements:
    import torch

    from berth.plan.profile.timing import chain_states, time_layer, time_step, time_whole, without_tables
    from berth.zoo.load import load_model
    from berth.zoo.products import onednn_layers, onednn_products

    torch.set_num_threads(1)
    if task.register is not None:
        task.register()
    model = without_tables(load_model(task.model, task.seed, input_shape=task.input_shape)).to(task.place)
    measured = Measurements(layers=[[] for _ in task.layers])
    with onednn_products(onednn_layers(model, torch.device(task.place))):  # as in training
        for batch in task.batches:
            states, labels = chain_states(model, batch, task.seed, task.place)
            measured.whole.append(time_whole(model, states[0], labels, task.repeats))
            for index in range(len(task.layers)):
                measured.layers[index].append(time_layer(model, index, states[index], labels, task.repeats))
            del states, labels
            report(f"{batch:,} examples")
    measured.step = [time_step(model.layer(index), task.repeats) for index in range(len(task.layers))]
    return measured
