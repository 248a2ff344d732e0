"""Profiles a model: counts facts, measures this machine, models other devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING

from berth.cluster.catalogue import device_type
from berth.errors import InputError
from berth.extras import require
from berth.plan.profile.layer_profile import DeviceTimes, LayerFacts, LayerProfile, grid
from berth.plan.profile.machine import CORE
from berth.plan.profile.roofline import device_speeds, modelled_times
from berth.workload.profile import Provenance

if TYPE_CHECKING:
    from berth.plan.profile.measure import ProfilingTask

DEFAULT_DEVICES = (CORE, "T4", "V100-16", "A100-80", "H100")
PRODUCTION_ROWS = 1e9  # stated: ids of a click log of a large site
WORDS_IN_PRODUCTION = 1e7  # stated: words, names and phrases of a large text
Progress = Callable[[int, int, str], None]  # done, of how many, what


def profile_model(
    model: str,
    batch: int | None = None,
    devices: Sequence[str] = DEFAULT_DEVICES,
    repeats: int = 7,
    *,
    input_shape: tuple[int, ...] | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> LayerProfile:
    """Profile a model of the zoo or `path.py:make_model`; the default batch is the model's own."""
    _check_counts(batch, repeats)
    wanted = list(dict.fromkeys(device_type(device).name for device in devices))
    require("torch", "profiling")
    gpus = _gpus_here()
    for device in wanted:
        if device != CORE and device not in gpus:
            device_speeds(device)  # raises before measuring if it can't be modelled
    from berth.plan.profile import measure
    from berth.plan.profile.facts import NOTE, layer_facts
    from berth.plan.threads import single_thread
    from berth.zoo.load import load_model

    meter = _Meter(progress)
    with single_thread():
        made = load_model(model, seed, input_shape=input_shape)
        meter.total = len(made)
        layers = tuple(layer_facts(made, batch or made.batch, seed, meter.step))
    size = batch or made.batch
    task = measure.ProfilingTask(model, size, grid(size), repeats, layers, input_shape, seed)
    return LayerProfile(
        model=made.name,
        batch=task.batch,
        layers=layers,
        batches=task.batches,
        devices=tuple(_times(task, device, gpus, meter) for device in wanted),
        facts=Provenance("measured", NOTE, date.today().year),
        made=date.today(),
        sample=made.sample,
        rows=_production_rows(made.name, layers) if made.where is None else None,
    )


class _Meter:
    """Counts steps for a progress bar; the total grows as more steps become known."""

    def __init__(self, progress: Progress | None) -> None:
        self.done = 0
        self.total = 0
        self._progress = progress

    def step(self, what: str) -> None:
        """Report one more step."""
        self.done += 1
        if self._progress:
            self._progress(self.done, self.total, what)


def _times(task: ProfilingTask, device: str, gpus: dict[str, int], meter: _Meter) -> DeviceTimes:
    """Measure a device of this machine, model any other."""
    if device == CORE:
        from berth.plan.profile.core import core_times
        from berth.plan.profile.measure import steps

        meter.total += steps(task)
        return core_times(task, date.today(), meter.step)
    if device in gpus:
        from berth.plan.profile.gpu import gpu_times

        meter.total += len(task.batches)
        return gpu_times(task, device, f"cuda:{gpus[device]}", date.today(), meter.step)
    return modelled_times(task.layers, task.batch, task.batches, device)


def _production_rows(model: str, layers: Sequence[LayerFacts]) -> float | None:
    """Return the rows that the tables of a zoo model have in production: its examples come from far smaller ones."""
    if not any(layer.touched_bytes for layer in layers):
        return None
    return WORDS_IN_PRODUCTION if model == "nce" else PRODUCTION_ROWS


def _gpus_here() -> dict[str, int]:
    from berth.plan.profile.machine import local_gpus

    return local_gpus()


def _check_counts(batch: int | None, repeats: int) -> None:
    if batch is not None and batch < 1:
        raise InputError(f"a batch holds at least one example (given: {batch})")
    if repeats < 1:
        raise InputError(f"measure at least once (given: {repeats} repeats)")
