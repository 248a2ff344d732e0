"""Measures the times of one CPU core of this machine."""

from __future__ import annotations

import statistics
from datetime import date

from berth.plan.profile.amdahl import AmdahlFit, fit_amdahl
from berth.plan.profile.exchange import TIMES_REPEATED
from berth.plan.profile.layer_profile import DeviceTimes, short
from berth.plan.profile.machine import describe_core, torch_version
from berth.plan.profile.make import CORE
from berth.plan.profile.measure import Measurements, ProfilingTask, Report, measure
from berth.workload.profile import Provenance


def core_times(task: ProfilingTask, today: date, report: Report) -> DeviceTimes:
    """Measure every layer; the sources say how."""
    measured = measure(task, report)
    places = range(len(task.layers))
    alphas = [
        fit_amdahl({replicas: timing.seconds for replicas, timing in measured.compute[place].items()})
        for place in places
    ]
    betas = [_beta(place, measured) for place in places]
    spread = tuple(round(measured.compute[place][1].spread, 4) for place in places)
    when = f"torch {torch_version()}, {today.isoformat()}"

    def source(note: str) -> Provenance:
        return Provenance("measured", note, today.year)

    return DeviceTimes(
        device=CORE,
        compute=source(
            f"one core of {describe_core()}, one thread, CPU time, median of {task.repeats}, "
            f"spread {statistics.median(spread):.0%}, {when}"
        ),
        data=source(
            "gloo between two local processes, all-reduce of dense gradients, pull and push of rows, "
            f"fastest of {TIMES_REPEATED * task.repeats}, {when}"
        ),
        scaling=source(_scaling_note(task, alphas + [fit for fit in betas if fit])),
        oct_s=tuple(short(measured.compute[place][1].seconds) for place in places),
        odt_s=tuple(short(_data_s(place, measured)) for place in places),
        alpha=tuple(short(fit.share) for fit in alphas),
        beta=tuple(short(fit.share if fit else 1.0) for fit in betas),
        spread=spread,
    )


def _data_s(place: int, measured: Measurements) -> float:
    """Return the synchronisation time of one layer: all-reduce of gradients, pull and push of rows."""
    return measured.all_reduce.get(place, 0.0) + measured.pull_push.get(place, {}).get(1, 0.0)


def _beta(place: int, measured: Measurements) -> AmdahlFit | None:
    """Fit the parallel share of synchronisation; a ring all-reduce does not shrink. None without synchronisation."""
    ring = measured.all_reduce.get(place, 0.0)
    rows = measured.pull_push.get(place, dict.fromkeys((1, 2), 0.0))
    return (
        fit_amdahl({replicas: ring + seconds for replicas, seconds in rows.items()})
        if _data_s(place, measured)
        else None
    )


def _scaling_note(task: ProfilingTask, fits: list[AmdahlFit]) -> str:
    counts = ", ".join(map(str, task.replica_counts))
    worst = max(fit.residual for fit in fits)
    at_once = min(task.processes, max(task.replica_counts))
    return (
        f"least squares over k = {counts} on 1/k of the batch, up to {at_once} processes at once, "
        f"residual {worst:.0%} at most; a ring all-reduce is assumed not to shrink (beta 0)"
    )
