"""Is one policy better than another, or was it luck? Differences with 95 % confidence intervals.

Every policy runs on the same traces, and the ratio to the first policy is taken trace by trace, so what the traces have
in common cancels out. A generated trace is generated again at every seed. A trace from a file is run as it is and then
resampled: its own ratios are reported, and the interval is of the median over traces like it (see `intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from berth.arrays import FloatArray
from berth.cluster.gpus import gpu_part
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.schedule.policy import Policy
from berth.simulate.compared import COMPARED
from berth.simulate.frames import runs_frame
from berth.simulate.intervals import (
    FEWEST_RESAMPLED,
    FEWEST_SEEDS,
    has_ratios,
    median_interval,
    paired_ratios,
    resampled_interval,
)
from berth.simulate.metrics import Summary, summarise
from berth.simulate.outcome import require_finished
from berth.simulate.reference import plain_frame
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import TraceSource
from berth.workload.resampling import outlasts_blocks, resampled
from berth.workload.trace import Trace

Method = Literal["seeds", "resampled"]
Verdict = Literal["better", "worse", "within noise", "the same", "no interval"]

_CHANGE = "a change is the median of the changes trace by trace, not the ratio of the two columns"
_SLIGHT = 0.001  # a tenth of a percent, the last digit that reports print
DEFAULT_SEEDS: dict[Method, int] = {"seeds": 10, "resampled": FEWEST_RESAMPLED}


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against the first in one metric of `compared`; ratios below 1 are better where less is."""

    policy: str
    against: str
    metric: str
    value: float
    against_value: float
    ratio: float  # over seeds the median of the ratios; of a trace from a file its own
    low: float | None  # of the 95 % interval; None: too few traces
    high: float | None
    mean_ratio: float  # geometric mean over all traces

    @property
    def uneven(self) -> bool:
        """Whether a few traces carry so much of the difference that the mean is clearly outside the interval."""
        if self.low is None or self.high is None:
            return False
        return not self.low - _SLIGHT <= self.mean_ratio <= self.high + _SLIGHT

    @property
    def verdict(self) -> Verdict:
        """In one word or two."""
        if self.low is None or self.high is None:
            return "no interval"
        if self.low == self.high == self.mean_ratio == 1.0:
            return "the same"
        if self.low <= 1.0 <= self.high:
            return "within noise"
        return "better" if (self.high < 1.0) == COMPARED[self.metric].less_is_better else "worse"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Comparison:
    """All differences, and how they were found."""

    method: Method
    seeds: int
    how: str
    differences: tuple[Difference, ...]
    results: tuple[tuple[Summary, ...], ...]  # [seed][policy]
    fault_seeds: tuple[int, ...] = ()  # of the failures at each seed, the same for every policy
    warnings: tuple[str, ...] = ()  # what the intervals do not show

    def frame(self) -> pl.DataFrame:
        """One row per run: `round`, `fault_seed`, `policy` and every figure of its summary."""
        return runs_frame(
            (
                {"round": number, "fault_seed": self.fault_seeds[number] if self.fault_seeds else None},
                one.as_json(),
            )
            for number, row in enumerate(self.results)
            for one in row
        )


def compare(
    source: TraceSource,
    cluster: Cluster,
    policies: dict[str, Policy],
    setting: Setting,
    *,
    seeds: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Run every policy under every seed and compare each with the first.

    At one seed all policies get the same trace, the same models and the same failures. Without `seeds` there are 10
    generated traces, or the trace of a file and 19 resampled from it.
    """
    if len(policies) < 2:
        raise InputError("a comparison needs two policies", hint="give --policy twice, e.g. fifo and srtf")
    method: Method = "seeds" if source.generated else "resampled"
    seeds = DEFAULT_SEEDS[method] if seeds is None else seeds
    if seeds < 1:
        raise InputError(f"--seeds: 1 or more (given: {seeds})")
    first = source.trace(cluster)
    results: list[tuple[Summary, ...]] = []
    for number in range(seeds):
        varied = replace(setting, seed=setting.seed + number)
        trace = first if number == 0 else _another(source, first, cluster, varied.seed, number)
        row = []
        for name, policy in policies.items():
            row.append(summarise(require_finished(simulate(trace, cluster, policy, varied, name=name))))
            if progress is not None:
                progress(len(results) * len(policies) + len(row), seeds * len(policies))
        results.append(tuple(row))
    differences = _differences(method, results)
    return Comparison(
        method,
        seeds,
        _how(method, seeds, _chance(first, cluster, setting)),
        differences,
        tuple(results),
        _fault_seeds(setting, seeds),
        (*_warnings(method, first, differences), *_without_ratio(results, differences)),
    )


def _another(source: TraceSource, first: Trace, cluster: Cluster, seed: int, number: int) -> Trace:
    """Return the trace of a later seed."""
    return source.trace(cluster, number) if source.generated else resampled(first, seed)


def _how(method: Method, seeds: int, chance: Sequence[str]) -> str:
    """Describe what the times, changes and intervals refer to."""
    also = f", each with its own {' and '.join(chance)}" if chance else ""
    fewest = FEWEST_SEEDS if method == "seeds" else FEWEST_RESAMPLED
    if seeds < fewest:
        several = seeds > 1 and method == "seeds"
        over = f"medians of {seeds} generated traces" if several else "one trace"
        none = f"; no intervals: they need --seeds {fewest} or more"
        return f"{over}, the same for every policy{f'; {_CHANGE}' if several else ''}{none}"
    if method == "seeds":
        over = f"medians of {seeds} generated traces{also}, the same for every policy"
        return f"{over}; {_CHANGE}; intervals of the median"
    drawn = f"{seeds - 1} traces resampled from it in blocks of jobs{also}"
    return f"times and changes are of this trace; intervals are of the median over traces like it ({drawn})"


def _chance(trace: Trace, cluster: Cluster, setting: Setting) -> list[str]:
    """List what another seed changes besides the jobs."""
    modelled = setting.network != "off" or len(gpu_part(cluster).device_types) > 1
    random = {
        "models of jobs that name none": modelled and plain_frame(trace)["model"].null_count() > 0,
        "errors of remaining times": setting.estimate_error > 0,
        "failures of machines": setting.fault_spec is not None and setting.fault_spec.random,
    }
    return [what for what, varies in random.items() if varies]


def _fault_seeds(setting: Setting, rounds: int) -> tuple[int, ...]:
    """The seed of the failures in each round; none if no failures are drawn."""
    spec = setting.fault_spec
    if spec is None or not spec.random:
        return ()
    return tuple(spec.at(setting.seed + number).seed for number in range(rounds))


def _differences(method: Method, results: Sequence[Sequence[Summary]]) -> tuple[Difference, ...]:
    """Compare each policy with the first in each metric."""
    found = []
    for at in range(1, len(results[0])):
        names = results[0][at].policy, results[0][0].policy
        for metric in COMPARED:
            mine, base = (np.array([getattr(row[i], metric) for row in results]) for i in (at, 0))
            if has_ratios(mine, base):
                found.append(_difference(method, names, metric, mine, base))
    return tuple(found)


def _without_ratio(results: Sequence[Sequence[Summary]], differences: Sequence[Difference]) -> list[str]:
    """Name the metrics that are 0 on some trace, so that no ratio can be taken."""
    listed = {(one.policy, one.metric) for one in differences}
    notes = []
    for one in results[0][1:]:
        missing = [metric.name for metric in COMPARED.values() if (one.policy, metric.field) not in listed]
        if missing:
            notes.append(
                f"{one.policy}: no ratio, since one of the two is 0 on a trace: {', '.join(missing)}"
            )
    return notes


def _difference(
    method: Method, names: tuple[str, str], metric: str, mine: FloatArray, base: FloatArray
) -> Difference:
    """Compare two policies by their figures on each trace."""
    ratios = paired_ratios(mine, base)
    seeds = method == "seeds"
    value, against_value, ratio = (
        float(np.median(values) if seeds else values[0]) for values in (mine, base, ratios)
    )
    low, high = (median_interval(ratios) if seeds else resampled_interval(ratios)) or (None, None)
    mean = float(np.exp(np.log(ratios).mean()))
    return Difference(*names, metric, value, against_value, ratio, low, high, mean)


def _warnings(method: Method, trace: Trace, differences: Sequence[Difference]) -> tuple[str, ...]:
    """Return warnings about what the intervals do not show."""
    if method == "seeds":
        return tuple(
            f"{one.policy}, {COMPARED[one.metric].name}: the mean change, {100 * (one.mean_ratio - 1):+.1f} %, "
            "is outside the interval of the median: a few traces differ far more than the rest"
            for one in differences
            if one.uneven
        )
    if outlasts_blocks(trace) and any(one.low is not None for one in differences):
        return (
            "jobs are alike over longer stretches than the blocks that are resampled: the intervals are too narrow",
        )
    return ()
