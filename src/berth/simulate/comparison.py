"""Is one policy better than another, or was it luck? Differences with 95 % confidence intervals.

Several seeds: every policy plays the same traces, and the ratio to the first policy is taken trace by trace,
so what the traces have in common cancels out; the interval is Student's over the logarithms of the ratios.
One trace and nothing random in it: blocks of jobs in order of arrival are resampled (see `intervals`). A makespan
can't be resampled: it has no interval then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from berth.cluster.gpus import gpu_part
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.schedule.policy import Policy
from berth.schedule.records import DONE
from berth.simulate.intervals import DRAWS, Floats, job_intervals, ratio_interval
from berth.simulate.metrics import Summary, summarise
from berth.simulate.outcome import require_finished
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import TraceSource
from berth.workload.trace import Trace

METRICS = ("mean_jct_s", "p99_jct_s", "makespan_s")

Verdict = Literal["better", "worse", "within noise", "the same"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against the first in one metric; ratios below 1 are better."""

    policy: str
    against: str
    metric: str
    value_s: float
    against_s: float
    ratio: float
    low: float | None  # of the 95 % interval; None: the metric has none
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """In one word or two."""
        if self.ratio == 1.0 and self.low in (None, 1.0) and self.high in (None, 1.0):
            return "the same"
        low = self.ratio if self.low is None else self.low
        high = self.ratio if self.high is None else self.high
        if low <= 1.0 <= high:
            return "within noise"
        return "better" if self.ratio < 1.0 else "worse"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Comparison:
    """All differences, and how they were found."""

    method: Literal["seeds", "bootstrap"]
    seeds: int
    how: str
    differences: tuple[Difference, ...]
    results: tuple[tuple[Summary, ...], ...]  # [seed][policy]
    fault_seeds: tuple[int, ...] = ()  # of the failures at each seed, the same for every policy


def compare(
    source: TraceSource,
    cluster: Cluster,
    policies: dict[str, Policy],
    setting: Setting,
    *,
    seeds: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Runs every policy under every seed and compares each with the first.

    At one seed all policies get the same trace, the same models and the same failures.
    """
    if len(policies) < 2:
        raise InputError("a comparison needs two policies", hint="give --policy twice, e.g. fifo and srtf")
    if seeds < 1:
        raise InputError(f"--seeds: 1 or more (given: {seeds})")
    first = source.trace(cluster)
    chance = _chance(source, first, cluster, setting)
    method: Literal["seeds", "bootstrap"] = "seeds" if chance and seeds > 1 else "bootstrap"
    rounds = seeds if method == "seeds" else 1
    results: list[tuple[Summary, ...]] = []
    jcts: list[Floats] = []
    for number in range(rounds):
        trace = first if number == 0 else source.trace(cluster, number)
        varied = replace(setting, seed=setting.seed + number)
        row = []
        for name, policy in policies.items():
            summary, jct = _result(trace, cluster, policy, varied, name)
            row.append(summary)
            jcts += [jct] if method == "bootstrap" else []
            if progress is not None:
                progress(len(results) * len(policies) + len(row), rounds * len(policies))
        results.append(tuple(row))
    if method == "seeds":
        differences = _over_seeds(results)
        how = f"{seeds} seeds of {' and '.join(chance)}, the same for every policy"
    else:
        differences = _over_jobs(jcts, results[0])
        why = "one seed" if chance else "nothing in it is random"
        how = f"one trace ({why}): blocks of its jobs resampled {DRAWS:,} times"
    return Comparison(method, rounds, how, differences, tuple(results), _fault_seeds(setting, rounds))


def _result(
    trace: Trace, cluster: Cluster, policy: Policy, setting: Setting, name: str
) -> tuple[Summary, Floats]:
    """The figures of one run and the completion times of its jobs; the run itself is large and not kept."""
    run = require_finished(simulate(trace, cluster, policy, setting, name=name))
    done = run.records[run.records["state"] == DONE]
    return summarise(run), np.asarray(done["end_s"] - done["arrival_s"], dtype=np.float64)


def _chance(source: TraceSource, trace: Trace, cluster: Cluster, setting: Setting) -> list[str]:
    """What another seed changes."""
    modelled = setting.network != "off" or len(gpu_part(cluster).device_types) > 1
    random = {
        "the generated trace": source.generated,
        "the models that jobs train": modelled and trace.frame["model"].null_count() > 0,
        "the errors of remaining times": setting.estimate_error > 0,
        "the failures of machines": setting.fault_spec is not None and setting.fault_spec.random,
    }
    return [what for what, varies in random.items() if varies]


def _fault_seeds(setting: Setting, rounds: int) -> tuple[int, ...]:
    """The seed of the failures in each round; none if no failures are drawn."""
    spec = setting.fault_spec
    if spec is None or not spec.random:
        return ()
    return tuple(spec.at(setting.seed + number).seed for number in range(rounds))


def _over_seeds(results: Sequence[Sequence[Summary]]) -> tuple[Difference, ...]:
    found = []
    for at in range(1, len(results[0])):
        for metric in METRICS:
            mine = np.array([getattr(row[at], metric) for row in results])
            base = np.array([getattr(row[0], metric) for row in results])
            ratio, low, high = ratio_interval(mine, base)
            names = results[0][at].policy, results[0][0].policy
            found.append(Difference(*names, metric, float(mine.mean()), float(base.mean()), ratio, low, high))
    return tuple(found)


def _over_jobs(jcts: Sequence[Floats], results: Sequence[Summary]) -> tuple[Difference, ...]:
    found = []
    for at in range(1, len(results)):
        names = results[at].policy, results[0].policy
        intervals = job_intervals(jcts[at], jcts[0])
        for metric in METRICS:
            mine, base = getattr(results[at], metric), getattr(results[0], metric)
            low, high = intervals.get(metric) or (None, None)
            found.append(Difference(*names, metric, mine, base, mine / base if base else 1.0, low, high))
    return tuple(found)
