"""Curves for the report, reduced to what a picture can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from berth.arrays import FloatArray
from berth.schedule.records import JobStatus
from berth.simulate import timeline
from berth.simulate.run import Run
from berth.simulate.timeline import Attempts, TimerWatch
from berth.units import format_count

_BINS = 300
_NEARLY_ALL = 0.99
_MAP_BINS = 160
_QUANTILES = 240
_GANTT_JOBS = 800  # beyond that, those with most GPU time
_GANTT_ATTEMPTS = 4_000
_TIMER_LINES = 6


def shared_edges(runs: Sequence[Run]) -> FloatArray:
    """Equal bins of time over all runs, so that their curves can be laid over each other.

    A few jobs that run for weeks after all others would squeeze the curves into a corner: they stop a while
    after nearly all jobs are over.
    """
    begin = min(float(run.records["arrival_s"].min(initial=0.0)) for run in runs)
    end = max(timeline.last_end_s(run) for run in runs)
    nearly = max(float(np.quantile(run.records["end_s"], _NEARLY_ALL)) for run in runs)
    return np.linspace(begin, max(min(end, begin + 1.3 * (nearly - begin)), begin + 1.0), _BINS + 1)


def run_data(name: str, run: Run, timers: TimerWatch | None, edges: FloatArray) -> dict[str, Any]:
    """All curves of one run as plain data."""
    tried = timeline.attempts(run)
    coarse = np.linspace(edges[0], edges[-1], _MAP_BINS + 1)
    found = timeline.occupancy(run, tried, coarse)
    held = timeline.devices_held(tried, edges) / max(1, run.cluster.devices)
    return {
        "name": name,
        "jct": _numbers(_quantiles(run)),
        "queue": _numbers(timeline.queue_length(run, edges)),
        "use": _numbers(held),
        "map": {
            "word": found.word,
            "names": list(found.names),
            "rows": [np.clip(np.rint(row * 100), 0, 100).astype(int).tolist() for row in found.share],
        },
        "timers": _timers(run, timers),
        "gantt": _gantt(run, tried),
    }


def _numbers(values: FloatArray) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _quantiles(run: Run) -> FloatArray:
    done = run.records[run.records["state"] == JobStatus.DONE]
    if not len(done):
        return np.zeros(0)
    jct: FloatArray = np.quantile(done["end_s"] - done["arrival_s"], np.linspace(0, 1, _QUANTILES))
    return jct


def _timers(run: Run, watch: TimerWatch | None) -> list[dict[str, Any]]:
    """The timers that most jobs taught, as they were tuned."""
    if watch is None or not watch.times or watch.samples is None or watch.demands is None:
        return []
    tiers = [tier.name for tier in run.cluster.tiers]
    taught = watch.samples[:, : len(tiers) - 1]
    order = np.argsort(-taught, axis=None, kind="stable")[:_TIMER_LINES]
    lines = []
    for demand, tier in zip(*np.unravel_index(order, taught.shape), strict=True):
        if taught[demand, tier] > 0:
            values = np.array([timers[demand, tier] for timers in watch.timers])
            label = f"{format_count(int(watch.demands[demand]), 'GPU')}, {tiers[tier]}"
            lines.append({"label": label, "x": _numbers(np.array(watch.times)), "y": _finite(values)})
    return lines


def _finite(values: FloatArray) -> list[float | None]:
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _gantt(run: Run, tried: Attempts) -> dict[str, Any]:
    """Jobs and their attempts in whole seconds; of a large trace, the jobs with most GPU time."""
    records = run.records
    ran = np.flatnonzero(records["state"] == JobStatus.DONE)
    largest = ran[np.argsort(-records["attained_gpu_s"][ran], kind="stable")][:_GANTT_JOBS]
    kept = np.sort(largest)
    number = {int(row): at for at, row in enumerate(kept)}
    rows = np.flatnonzero(np.isin(tried.job, kept))[:_GANTT_ATTEMPTS]
    columns = (tried.job[rows], tried.start_s[rows], tried.stop_s[rows], tried.tier[rows])
    ids = run.trace.job_ids
    return {
        "jobs": [
            [ids[row], int(gpus), str(run.jobs.models[row]), round(float(arrival))]
            for row, gpus, arrival in zip(
                kept, records["gpus"][kept], records["arrival_s"][kept], strict=True
            )
        ],
        "attempts": [
            [number[int(job)], round(float(start)), round(float(stop)), int(tier)]
            for job, start, stop, tier in zip(*columns, strict=True)
        ],
        "of": len(ran),
    }
