"""What a timer makes of waits: their mean and some deviations, with give-ups read in one of three ways.

A give-up is a censored sample: the wait would have been longer than this. `ignore` drops it, `count` takes it
at its face, `kaplan-meier` estimates the distribution that both kinds of sample come from. Where even the
longest sample is a give-up, what is beyond it is taken to be the longest timer allowed.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np

from berth.schedule.views import WaitStatsView

Censored = IntEnum("Censored", ["IGNORE", "COUNT", "KAPLAN_MEIER"])


def timer_from(
    stats: WaitStatsView, since: float, samples: float, deviations: float, longest: float, censored: Censored
) -> float:
    """The timer that the samples since then make; the fixed one if they are too few."""
    waits, gave_up, count = np.empty(stats.count), np.empty(stats.count, np.int64), 0
    for i in range(stats.count):
        if stats.at_s[i] >= since and not (censored == Censored.IGNORE and stats.gave_up[i]):
            waits[count], gave_up[count] = stats.wait_s[i], stats.gave_up[i]
            count += 1
    if count < samples:
        return stats.initial_timer_s
    if censored == Censored.KAPLAN_MEIER:
        mean, deviation = survival_moments(waits[:count], gave_up[:count], longest)
    else:
        mean, deviation = moments(waits[:count])
    return min(max(0.0, mean + deviations * deviation), longest)


def moments(waits: Any) -> tuple[float, float]:
    """Mean and standard deviation, summed from the first to the last so that every CPU gives the same bits."""
    total, square = 0.0, 0.0
    for wait in waits:
        total += wait
    mean = total / len(waits)
    for wait in waits:
        square += (wait - mean) * (wait - mean)
    return mean, math.sqrt(square / len(waits))


def survival_moments(waits: Any, gave_up: Any, longest: float) -> tuple[float, float]:
    """Mean and deviation under the Kaplan-Meier curve; at equal times an end comes before a give-up."""
    order = np.argsort(waits + 1e-9 * gave_up, kind="mergesort")
    at_risk = len(waits)
    alive, mean, square = 1.0, 0.0, 0.0
    for i in order:
        if not gave_up[i]:
            share = alive / at_risk
            mean += share * waits[i]
            square += share * waits[i] * waits[i]
            alive -= share
        at_risk -= 1
    if alive > 1e-12:
        beyond = max(longest, waits.max())
        mean += alive * beyond
        square += alive * beyond * beyond
    return mean, math.sqrt(max(0.0, square - mean * mean))
