"""Times of a GPU of this machine: computation measured with CUDA events, synchronisation modelled.

One GPU runs 1/k of the batch for each k, which gives alpha; measuring synchronisation would need two GPUs.
"""

from __future__ import annotations

import statistics
from datetime import date

from berth.plan.profile.amdahl import fit_amdahl
from berth.plan.profile.layer_profile import DeviceTimes, short
from berth.plan.profile.machine import torch_version
from berth.plan.profile.measure import ProfilingTask, Report
from berth.plan.profile.roofline import device_speeds, modelled_data, modelled_data_source
from berth.plan.profile.timing import chain_states, time_layer
from berth.workload.profile import Provenance
from berth.zoo.load import load_model


def gpu_times(task: ProfilingTask, device: str, place: str, today: date, report: Report) -> DeviceTimes:
    """Measure every layer on the torch device `place`, whose catalogue name is `device`."""
    model = load_model(task.model, task.seed, input_shape=task.input_shape).to(place)
    seconds: list[dict[int, float]] = [{} for _ in task.layers]
    spread = [0.0] * len(task.layers)
    for replicas in task.replica_counts:
        states, labels = chain_states(model, max(1, task.batch // replicas), task.seed, place)
        for index, layer in enumerate(task.layers):
            timing = time_layer(model, index, states[index], labels, task.repeats)
            seconds[index][replicas] = timing.seconds
            spread[index] = round(timing.spread, 4) if replicas == 1 else spread[index]
            report(f"{layer.name} on {device}")
    speeds = device_speeds(device)
    data = [modelled_data(layer, speeds) for layer in task.layers]
    how = f"spread {statistics.median(spread):.0%}, torch {torch_version()}, {today.isoformat()}"
    return DeviceTimes(
        device=device,
        compute=Provenance("measured", f"CUDA events, median of {task.repeats}, {how}", today.year),
        data=modelled_data_source(speeds),
        scaling=Provenance("measured", "alpha over 1/k of the batch on one GPU; beta modelled", today.year),
        oct_s=tuple(short(layer[1]) for layer in seconds),
        odt_s=tuple(taken for taken, _ in data),
        alpha=tuple(short(fit_amdahl(layer).share) for layer in seconds),
        beta=tuple(share for _, share in data),
        spread=tuple(spread),
    )
