"""Times of a GPU of this machine: computation and optimiser step measured with CUDA events."""

from __future__ import annotations

from datetime import date

from berth.plan.profile.core import curves_of_whole
from berth.plan.profile.layer_profile import DeviceTimes, short
from berth.plan.profile.machine import torch_version
from berth.plan.profile.measure import Measurements, ProfilingTask, Report
from berth.plan.profile.timing import chain_states, time_layer, time_step, time_whole
from berth.workload.profile import Provenance
from berth.zoo.load import load_model

_LEAST_UNCERTAINTY = 0.03


def gpu_times(task: ProfilingTask, device: str, place: str, today: date, report: Report) -> DeviceTimes:
    """Measure every layer on the torch device `place`, whose catalogue name is `device`; rows are looked up there."""
    model = load_model(task.model, task.seed, input_shape=task.input_shape).to(place)
    measured = Measurements(layers=[[] for _ in task.layers])
    for batch in task.batches:
        states, labels = chain_states(model, batch, task.seed, place)
        measured.whole.append(time_whole(model, states[0], labels, task.repeats))
        for index in range(len(task.layers)):
            measured.layers[index].append(time_layer(model, index, states[index], labels, task.repeats))
        report(f"{batch:,} examples on {device}")
    measured.step = [time_step(model.layer(index), task.repeats) for index in range(len(task.layers))]
    curves, apart = curves_of_whole(measured)
    how = f"CUDA events, median of {task.repeats}, torch {torch_version()}, {today.isoformat()}"
    return DeviceTimes(
        device=device,
        batch=task.batch,
        batches=task.batches,
        curves=curves,
        step_s=tuple(short(timing.seconds) for timing in measured.step),
        uncertainty=round(max(_LEAST_UNCERTAINTY, apart / 2), 3),
        compute=Provenance("measured", how, today.year),
        step=Provenance("measured", f"fused Adam, {how}", today.year),
    )
