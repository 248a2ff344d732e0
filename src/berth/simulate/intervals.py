"""95 % intervals of the ratio of two policies: over seeds, or over the jobs of one trace.

Over seeds the ratios are independent: Student's t over their logarithms. Over the jobs of one trace they are not, since
neighbours in a queue wait for the same devices: blocks of neighbours are resampled (circular block bootstrap, paired).
The length of the blocks follows from the correlation found in the jobs (Politis and White 2004, Patton and others
2009), half as long again since too short costs coverage and too long only width; what correlation across the ends of
blocks adds is put back. The interval is Student's t with as many degrees of freedom as there are blocks, for p99 blocks
that hold one of the longest jobs. docs/design/intervals.md shows what such intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.workload.streams import stream

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
DRAWS = 1000
_LONGER = 1.5
_FEWEST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class JobStatistic:
    """A figure over jobs, and what each job adds to it; sums of that vary as the figure does."""

    value: Callable[[Floats], float]
    influence: Callable[[Floats], Floats]
    tail: Callable[[Floats], NDArray[np.bool_]]  # the jobs on which it depends


def _above_p99(jct: Floats) -> NDArray[np.bool_]:
    return jct >= np.percentile(jct, 99)


JOB_STATISTICS = {
    "mean_jct_s": JobStatistic(
        value=lambda jct: float(jct.mean()),
        influence=lambda jct: jct / jct.mean(),
        tail=lambda jct: np.ones(len(jct), dtype=bool),
    ),
    "p99_jct_s": JobStatistic(
        value=lambda jct: float(np.percentile(jct, 99)),
        influence=lambda jct: _above_p99(jct).astype(np.float64),
        tail=_above_p99,
    ),
}


def ratio_interval(mine: Floats, base: Floats) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios, and its 95 % interval (Student's t over the logarithms)."""
    logs = np.log(mine / base)
    middle = float(logs.mean())
    if len(logs) == 1:
        return math.exp(middle), 0.0, math.inf
    reach = _t(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def job_intervals(mine: Floats, base: Floats, draws: int = DRAWS) -> dict[str, tuple[float, float] | None]:
    """95 % intervals of the ratio of each statistic over the jobs of one trace; None for a single job."""
    count = len(mine)
    if count < 2:
        return dict.fromkeys(JOB_STATISTICS)
    length = _common_length(mine, base)
    logs = _resampled(mine, base, length, draws)
    found: dict[str, tuple[float, float] | None] = {}
    for at, (name, statistic) in enumerate(JOB_STATISTICS.items()):
        middle = math.log(statistic.value(mine) / statistic.value(base))
        missed = underestimate(statistic.influence(mine) - statistic.influence(base), length)
        spread = float(logs[:, at].std(ddof=1)) * math.sqrt(missed * count / (count - length))
        blocks = min(_blocks_of(statistic.tail(jct), length) for jct in (mine, base))
        reach = _t(max(1, blocks - 1)) * spread
        found[name] = math.exp(middle - reach), math.exp(middle + reach)
    return found


def _common_length(mine: Floats, base: Floats) -> int:
    """The length of blocks that every statistic needs."""
    lengths = [
        _LONGER * block_length(statistic.influence(mine) - statistic.influence(base))
        for statistic in JOB_STATISTICS.values()
    ]
    return max(1, min(round(max(lengths)), len(mine) // _FEWEST_BLOCKS))


def _resampled(mine: Floats, base: Floats, length: int, draws: int) -> Floats:
    """Logarithms of the ratio of each statistic, one row per draw."""
    count, generator = len(mine), stream(0, "resampling")
    logs = np.empty((draws, len(JOB_STATISTICS)))
    within = np.arange(length)
    for draw in range(draws):
        starts = generator.integers(0, count, -(-count // length))
        rows = ((starts[:, None] + within) % count).ravel()[:count]
        one, other = mine[rows], base[rows]
        logs[draw] = [math.log(each.value(one) / each.value(other)) for each in JOB_STATISTICS.values()]
    return logs


def _blocks_of(tail: NDArray[np.bool_], length: int) -> int:
    """Blocks that hold one of the jobs on which a statistic depends."""
    return len(np.unique(np.flatnonzero(tail) // length))


def block_length(series: Floats) -> float:
    """Politis and White's length of blocks for the circular bootstrap of a series' mean; 1 without correlation."""
    count = len(series)
    covariance, weights = _correlation(series)
    spectrum = _long_run(covariance, weights)
    if not spectrum > 0:
        return 1.0
    slope = 2.0 * float((weights * np.arange(1, len(weights) + 1) * covariance[1 : len(weights) + 1]).sum())
    length = (1.5 * (slope / spectrum) ** 2 * count) ** (1 / 3)
    return min(max(1.0, length), 3.0 * math.sqrt(count), count / 3)


def underestimate(series: Floats, length: int) -> float:
    """The variance of a series' mean over what blocks of this length see of it; 1 or more.

    Correlation across the ends of blocks is lost: of lag k the share k / length.
    """
    covariance, weights = _correlation(series)
    lags = np.arange(1, len(weights) + 1)
    seen = _long_run(covariance, weights * np.maximum(0.0, 1.0 - lags / length))
    return max(1.0, _long_run(covariance, weights) / seen) if seen > 0 else 1.0


def _long_run(covariance: Floats, weights: Floats) -> float:
    """The variance of a mean times the number of jobs."""
    return float(covariance[0] + 2.0 * (weights * covariance[1 : len(weights) + 1]).sum())


def _correlation(series: Floats) -> tuple[Floats, Floats]:
    """Autocovariances from lag 0 on, and the weights of those from lag 1 on that are significant (a flat top)."""
    count = len(series)
    if count < 8 or not series.std() > 1e-9 * (np.abs(series).max() + 1e-300):
        return np.zeros(1), np.zeros(0)
    in_a_row = max(5, int(math.sqrt(math.log10(count))))
    most = min(count - 1, math.ceil(math.sqrt(count)) + in_a_row)
    covariance = _autocovariance(series, most)
    large = np.abs(covariance[1:] / covariance[0]) >= 2 * math.sqrt(math.log10(count) / count)
    band = min(2 * max(1, _last_before_quiet(large, in_a_row)), most)
    return covariance, np.minimum(1.0, 2.0 * (1.0 - np.arange(1, band + 1) / band))


def _autocovariance(series: Floats, most: int) -> Floats:
    """At lags 0 to `most`."""
    centred = series - series.mean()
    size = 1 << (2 * len(series) - 1).bit_length()
    transformed = np.fft.rfft(centred, size)
    return np.asarray(np.fft.irfft(np.abs(transformed) ** 2, size)[: most + 1] / len(series))


def _last_before_quiet(large: NDArray[np.bool_], in_a_row: int) -> int:
    """The lag before the first `in_a_row` small correlations in a row; the last large one if there are none."""
    quiet = 0
    for lag, is_large in enumerate(large.tolist(), start=1):
        quiet = 0 if is_large else quiet + 1
        if quiet == in_a_row:
            return lag - in_a_row
    return int(np.flatnonzero(large)[-1]) + 1 if large.any() else 0


def _t(freedom: int) -> float:
    """Student's quantile of a 95 % interval."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
