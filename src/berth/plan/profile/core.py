"""The times of one CPU core of this machine, all of them measured."""

from __future__ import annotations

import statistics
from datetime import date

from berth.plan.profile.amdahl import AmdahlFit, fit_amdahl
from berth.plan.profile.document import DeviceTimes, short
from berth.plan.profile.exchange import TIMES_REPEATED
from berth.plan.profile.machine import describe_core, torch_version
from berth.plan.profile.make import CORE
from berth.plan.profile.workers import Measured, Order, Report, measure
from berth.workload.profile import Provenance


def core_times(order: Order, today: date, report: Report) -> DeviceTimes:
    """Measures every layer and says how."""
    measured = measure(order, report)
    places = range(len(order.layers))
    alphas = [
        fit_amdahl({units: timing.seconds for units, timing in measured.compute[place].items()})
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
            f"one core of {describe_core()}, one thread, CPU time, median of {order.repeats}, "
            f"spread {statistics.median(spread):.0%}, {when}"
        ),
        data=source(
            "gloo between two local processes, all-reduce of dense gradients, pull and push of rows, "
            f"fastest of {TIMES_REPEATED * order.repeats}, {when}"
        ),
        scaling=source(_scaling_note(order, alphas + [fit for fit in betas if fit])),
        oct_s=tuple(short(measured.compute[place][1].seconds) for place in places),
        odt_s=tuple(short(_data_s(place, measured)) for place in places),
        alpha=tuple(short(fit.share) for fit in alphas),
        beta=tuple(short(fit.share if fit else 1.0) for fit in betas),
        spread=spread,
    )


def _data_s(place: int, measured: Measured) -> float:
    """Synchronisation of one layer: its gradients reduced, its rows pulled and pushed."""
    return measured.all_reduce.get(place, 0.0) + measured.pull_push.get(place, {}).get(1, 0.0)


def _beta(place: int, measured: Measured) -> AmdahlFit | None:
    """Rows shrink with the batch of a unit, a ring all-reduce does not; None where nothing is synchronised."""
    ring = measured.all_reduce.get(place, 0.0)
    rows = measured.pull_push.get(place, dict.fromkeys((1, 2), 0.0))
    return (
        fit_amdahl({units: ring + seconds for units, seconds in rows.items()})
        if _data_s(place, measured)
        else None
    )


def _scaling_note(order: Order, fits: list[AmdahlFit]) -> str:
    counts = ", ".join(map(str, order.unit_counts))
    worst = max(fit.residual for fit in fits)
    at_once = min(order.processes, max(order.unit_counts))
    return (
        f"least squares over k = {counts} on 1/k of the batch, up to {at_once} processes at once, "
        f"residual {worst:.0%} at most; a ring all-reduce is taken not to shrink (beta 0)"
    )
