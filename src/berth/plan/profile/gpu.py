"""The times of a GPU of this machine: computation measured with CUDA's events, synchronisation modelled.

One GPU takes 1/k of the batch for each k, which tells alpha; to measure synchronisation would need two.
"""

from __future__ import annotations

import statistics
from datetime import date

from berth.plan.profile.amdahl import fit_amdahl
from berth.plan.profile.document import DeviceTimes, short
from berth.plan.profile.machine import torch_version
from berth.plan.profile.roofline import machinery_of, modelled_data, modelled_data_source
from berth.plan.profile.timing import chain_states, time_layer
from berth.plan.profile.workers import Order, Report
from berth.workload.profile import Provenance
from berth.zoo.load import load_model


def gpu_times(order: Order, device: str, place: str, today: date, report: Report) -> DeviceTimes:
    """Measures every layer on the torch device `place`, under the catalogue's name for it."""
    model = load_model(order.model, order.seed, input_shape=order.input_shape).to(place)
    seconds: list[dict[int, float]] = [{} for _ in order.layers]
    spread = [0.0] * len(order.layers)
    for units in order.unit_counts:
        states, labels = chain_states(model, max(1, order.batch // units), order.seed, place)
        for index, layer in enumerate(order.layers):
            timing = time_layer(model, index, states[index], labels, order.repeats)
            seconds[index][units] = timing.seconds
            spread[index] = round(timing.spread, 4) if units == 1 else spread[index]
            report(f"{layer.name} on {device}")
    machinery = machinery_of(device)
    data = [modelled_data(layer, machinery) for layer in order.layers]
    how = f"spread {statistics.median(spread):.0%}, torch {torch_version()}, {today.isoformat()}"
    return DeviceTimes(
        device=device,
        compute=Provenance("measured", f"CUDA events, median of {order.repeats}, {how}", today.year),
        data=modelled_data_source(machinery),
        scaling=Provenance("measured", "alpha over 1/k of the batch on one GPU; beta modelled", today.year),
        oct_s=tuple(short(layer[1]) for layer in seconds),
        odt_s=tuple(taken for taken, _ in data),
        alpha=tuple(short(fit_amdahl(layer).share) for layer in seconds),
        beta=tuple(share for _, share in data),
        spread=tuple(spread),
    )
