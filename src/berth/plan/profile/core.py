"""Measures the times of one CPU core of this machine."""

from __future__ import annotations

import statistics
from datetime import date

from berth.plan.profile.layer_profile import DeviceTimes, FloatArray, non_decreasing, short
from berth.plan.profile.machine import CORE, describe_core, torch_version
from berth.plan.profile.measure import Measurements, ProfilingTask, Report, measure
from berth.workload.profile import Provenance

_LEAST_UNCERTAINTY = 0.03  # between two profiles of an idle machine


def core_times(task: ProfilingTask, today: date, report: Report) -> DeviceTimes:
    """Measure every layer; the sources say how."""
    measured = measure(task, report)
    curves, apart = curves_of_whole(measured)
    spread = statistics.median(timing.spread for timing in measured.whole)
    where = f"one core of {describe_core()}, one thread, CPU time, median of {task.repeats}"
    when = f"torch {torch_version()}, {today.isoformat()}"
    return DeviceTimes(
        device=CORE,
        batch=task.batch,
        batches=task.batches,
        curves=curves,
        step_s=tuple(short(timing.seconds) for timing in measured.step),
        uncertainty=round(max(_LEAST_UNCERTAINTY, spread, apart / 2), 3),
        compute=Provenance(
            "measured",
            f"{where}, spread {spread:.0%}, layers in proportion to a whole step ({apart:.0%} apart), {when}",
            today.year,
        ),
        step=Provenance("measured", f"fused Adam, {where}, {when}", today.year),
    )


def curves_of_whole(measured: Measurements) -> tuple[tuple[tuple[float, ...], ...], float]:
    """Return layers scaled so that they add up to the whole step, and how far apart the two are (median).

    No curve decreases: more examples never take less time.
    """
    import numpy as np

    layers: FloatArray = np.array([[timing.seconds for timing in row] for row in measured.layers])
    whole = np.array(non_decreasing([timing.seconds for timing in measured.whole]))
    ratio = whole / layers.sum(axis=0)
    curves = tuple(
        tuple(map(short, non_decreasing([float(seconds) for seconds in row]))) for row in layers * ratio
    )
    return curves, float(np.median(np.abs(ratio - 1)))
