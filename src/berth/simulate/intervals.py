"""95 % intervals of the ratio of two policies, from the ratios on several traces.

Completion times within one run can't give such an interval: one busy period may delay most of a trace's jobs, so a
run is about one observation however many jobs it has. Ratios on different traces can, in two ways:

Independent traces (seeds of a generator): an interval of the median, between two order statistics. It contains the
median with a probability of at least 95 % whatever the distribution of the ratios; Student's t does not if a few traces
have most of the difference.

Traces resampled from one (a file): they share its jobs, so their number says nothing about how well the median over
traces like it is known, but their spread does. The interval is the range of 95 % of the ratios.

docs/design/intervals.md has the measured coverage of both.
"""

from __future__ import annotations

import numpy as np

from berth.arrays import FloatArray

Interval = tuple[float, float]
CONFIDENCE = 0.95
FEWEST_SEEDS = 6  # the median lies outside the range of five with a probability of 2 / 2**5, more than 5 %
FEWEST_RESAMPLED = 20  # the range of six or ten misses the median too often (measured)


def paired_ratios(mine: FloatArray, base: FloatArray) -> FloatArray:
    """Return the ratios trace by trace; 1 where both are 0, as on a trace none of whose jobs can start."""
    return np.divide(mine, base, out=np.ones_like(mine), where=base > 0)


def has_ratios(mine: FloatArray, base: FloatArray) -> bool:
    """Return whether the ratio means something on every trace: both above 0, or nowhere a difference."""
    return bool(np.array_equal(mine, base) or ((mine > 0) & (base > 0)).all())


def median_interval(ratios: FloatArray) -> Interval | None:
    """Return the 95 % interval of the median over independent traces; None for fewer than six."""
    from scipy.special import bdtr

    ordered, count = np.sort(ratios), len(ratios)
    outside = (1 - CONFIDENCE) / 2
    rank = int((bdtr(np.arange(count // 2 + 1), count, 0.5) <= outside).sum())
    return (float(ordered[rank - 1]), float(ordered[-rank])) if rank else None


def resampled_interval(ratios: FloatArray) -> Interval | None:
    """Return the range of 95 % of the ratios and of the first, the given trace's; None for fewer than twenty."""
    if len(ratios) < FEWEST_RESAMPLED:
        return None
    outside = (1 - CONFIDENCE) / 2
    low = np.quantile(ratios, outside, method="lower")
    high = np.quantile(ratios, 1 - outside, method="higher")
    return float(min(low, ratios[0])), float(max(high, ratios[0]))
