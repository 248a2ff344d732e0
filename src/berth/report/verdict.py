"""A simulation in two sentences, and the few jobs that make its makespan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.schedule.records import JobStatus
from berth.simulate.metrics import Summary
from berth.simulate.run import Run
from berth.units import format_count, format_seconds

_SAME = 0.01  # mean completion times closer together than this are not worth a verdict
_FEW = 3  # jobs that may make a makespan
_SHORTER = 0.8  # without them the run ends within this share of its time


def verdict(results: Sequence[Summary], names: Sequence[str]) -> list[str]:
    """Return two sentences: which policy completes jobs soonest and by how much, and what its slowest jobs take."""
    known = [
        (one, name) for one, name in zip(results, names, strict=True) if one.finished and not one.unfinished
    ]
    stuck = [
        _stuck(len(one.unfinished), name) for one, name in zip(results, names, strict=True) if one.unfinished
    ]
    if not known:
        return stuck
    ranked = sorted(known, key=lambda pair: pair[0].mean_jct_s)
    (best, name), (worst, last) = ranked[0], ranked[-1]
    return [_first(ranked), _second(best, name, worst, last), *stuck]


def _stuck(count: int, name: str) -> str:
    return f"Under {name} {format_count(count, 'job')} never {'finishes' if count == 1 else 'finish'}."


def _first(ranked: Sequence[tuple[Summary, str]]) -> str:
    (best, name), (worst, last) = ranked[0], ranked[-1]
    mean = format_seconds(best.mean_jct_s)
    if len(ranked) == 1:
        waits = format_seconds(best.mean_wait_s)
        return f"Under {name} a job completes after {mean} on average; {waits} of that it waits."
    if worst.mean_jct_s <= best.mean_jct_s * (1 + _SAME):
        return f"The policies do not differ: a job completes after {mean} on average under each of them."
    second, runner_up = ranked[1]
    others = [f"{_less(best, second)} {runner_up}"] if last != runner_up else []
    others.append(f"{_less(best, worst)} {last}")
    return f"{name} completes jobs soonest, after {mean} on average: {' and '.join(others)}."


def _less(best: Summary, other: Summary) -> str:
    share = 1.0 - best.mean_jct_s / other.mean_jct_s
    return "as soon as" if share < _SAME else f"{share:.0%} less than"


def _second(best: Summary, name: str, worst: Summary, last: str) -> str:
    p99, use = format_seconds(best.p99_jct_s), f"{best.gpu_utilisation:.0%}"
    if last == name or worst.mean_jct_s <= best.mean_jct_s * (1 + _SAME):
        return f"One job in a hundred takes longer than {p99}; {use} of the GPU time was used."
    return (
        f"One job in a hundred takes longer than {p99}, under {last} longer than {format_seconds(worst.p99_jct_s)}; "
        f"{use} of the GPU time was used, {worst.gpu_utilisation:.0%} under {last}."
    )


def idle(results: Sequence[Summary]) -> str | None:
    """Return why policies do not differ, if no job waits under any of them; None if one does."""
    if len(results) < 2 or any(one.mean_wait_s > 0 or one.unfinished for one in results):
        return None
    return (
        "No job waits under any policy, so their order does not matter: a smaller --cluster or more jobs at the same "
        "time (generate:jobs=500,load=1) shows how they differ."
    )


def tail(run: Run, name: str) -> str | None:
    """Return which few jobs make the makespan of a run; None if it would be as long without any few."""
    jobs = run.records
    done = np.flatnonzero(jobs["state"] == JobStatus.DONE)
    if len(done) <= 2 * _FEW:
        return None
    first = float(jobs["arrival_s"].min())
    ends = jobs["end_s"][done] - first
    order = np.argsort(-ends, kind="stable")
    makespan = float(ends[order[0]])
    for few in range(1, _FEW + 1):
        rest = float(ends[order[few]])
        if rest <= _SHORTER * makespan:
            ids = [str(run.trace.job_ids[int(at)]) for at in done[order[:few]]]
            longest = float(jobs["work_s"][done[order[:few]]].max())
            what = "one job makes" if few == 1 else f"{few} jobs make"
            return (
                f"Under {name} {what} the makespan of {format_seconds(makespan)}: without {', '.join(ids)} "
                f"(up to {format_seconds(longest)} of work) it would be {format_seconds(rest)}."
            )
    return None
