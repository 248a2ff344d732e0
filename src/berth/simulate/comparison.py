"""Is one policy better than another, or was it luck? Differences with 95 % confidence intervals.

Several seeds: every policy plays the same traces, and the ratio to the first policy is taken trace by trace,
so what the traces have in common cancels out; the interval is Student's over the logarithms of the ratios.
One trace and nothing random in it: blocks of jobs in order of arrival are drawn anew (bootstrap). Blocks,
since neighbours in a queue share their luck. A makespan can't be drawn anew: it has no interval then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.schedule.policy import Policy
from berth.schedule.view import DONE
from berth.simulate.metrics import Summary, summarise
from berth.simulate.outcome import require_finished
from berth.simulate.run import Run, Setting, simulate
from berth.simulate.source import Source
from berth.workload.trace import Trace

METRICS = ("mean_jct_s", "p99_jct_s", "makespan_s")
_CONFIDENCE = 0.95
_BLOCKS = 50
_DRAWS = 2000

Floats = NDArray[np.float64]
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


def compare(
    source: Source,
    cluster: Cluster,
    policies: dict[str, Policy],
    setting: Setting,
    *,
    seeds: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Plays every policy under every seed and holds each against the first."""
    if len(policies) < 2:
        raise InputError("a comparison needs two policies", hint="give --policy twice, e.g. fifo and srtf")
    if seeds < 1:
        raise InputError(f"--seeds: 1 or more (given: {seeds})")
    first = source.trace(cluster)
    chance = _chance(source, first, setting)
    method: Literal["seeds", "bootstrap"] = "seeds" if chance and seeds > 1 else "bootstrap"
    rounds = seeds if method == "seeds" else 1
    runs: list[list[Run]] = []
    for number in range(rounds):
        trace = first if number == 0 else source.trace(cluster, number)
        varied = replace(setting, seed=setting.seed + number)
        row = []
        for name, policy in policies.items():
            row.append(require_finished(simulate(trace, cluster, policy, varied, name=name)))
            if progress is not None:
                progress(len(runs) * len(policies) + len(row), rounds * len(policies))
        runs.append(row)
    results = tuple(tuple(summarise(run) for run in row) for row in runs)
    if method == "seeds":
        differences, how = _over_seeds(results), f"{seeds} seeds of {chance}, the same for every policy"
    else:
        differences = _over_jobs(runs[0], results[0])
        why = "one seed" if chance else "nothing in it is left to chance"
        how = f"one trace ({why}): blocks of its jobs drawn anew, {_DRAWS:,} times"
    return Comparison(method, rounds, how, differences, results)


def _chance(source: Source, trace: Trace, setting: Setting) -> str | None:
    """What another seed would change."""
    if source.generated:
        return "the generated trace"
    if setting.network != "off" and trace.frame["model"].null_count():
        return "the models that jobs train"
    if setting.doubt > 0:
        return "how wrong the remaining times are"
    return None


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


def ratio_interval(mine: Floats, base: Floats) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios, and its 95 % interval (Student's t over the logarithms)."""
    from scipy.special import stdtrit

    logs = np.log(mine / base)
    middle = float(logs.mean())
    if len(logs) == 1:
        return math.exp(middle), 0.0, math.inf
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = float(stdtrit(len(logs) - 1, 0.5 + _CONFIDENCE / 2)) * error
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def _over_jobs(runs: Sequence[Run], results: Sequence[Summary]) -> tuple[Difference, ...]:
    found = []
    jcts = [_jct(run) for run in runs]
    for at in range(1, len(runs)):
        names = results[at].policy, results[0].policy
        statistics: dict[str, Callable[[Floats], Floats]] = {
            "mean_jct_s": lambda draw: draw.mean(axis=-1),
            "p99_jct_s": lambda draw: np.percentile(draw, 99, axis=-1),
        }
        for metric, statistic in statistics.items():
            low, high = bootstrap_interval(jcts[at], jcts[0], statistic)
            mine, base = getattr(results[at], metric), getattr(results[0], metric)
            found.append(Difference(*names, metric, mine, base, _ratio(mine, base), low, high))
        mine, base = results[at].makespan_s, results[0].makespan_s
        found.append(Difference(*names, "makespan_s", mine, base, _ratio(mine, base), None, None))
    return tuple(found)


def _ratio(mine: float, base: float) -> float:
    return mine / base if base else 1.0


def _jct(run: Run) -> Floats:
    done = run.records[run.records["state"] == DONE]
    return np.asarray(done["end"] - done["arrival"], dtype=np.float64)


def bootstrap_interval(
    mine: Floats, base: Floats, statistic: Callable[[Floats], Floats]
) -> tuple[float, float]:
    """95 % interval of the ratio of a statistic over jobs, by drawing blocks of neighbours anew (paired)."""
    if not len(mine):
        return 1.0, 1.0
    length = max(1, len(mine) // _BLOCKS)
    blocks = -(-len(mine) // length)
    generator = np.random.Generator(np.random.PCG64(0))
    ratios = np.empty(_DRAWS)
    for draw in range(_DRAWS):
        starts = generator.integers(0, len(mine), blocks)
        rows = ((starts[:, None] + np.arange(length)) % len(mine)).ravel()[: len(mine)]
        ratios[draw] = statistic(mine[rows]) / statistic(base[rows])
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)
