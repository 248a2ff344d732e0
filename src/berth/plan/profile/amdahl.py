"""Fits Amdahl's parallel share to times at several replica counts, by least squares.

time(k) = c * (1 - share + share / k) is a line in 1/k: intercept a = c * (1 - share), slope b = c * share. A share
outside [0, 1] means that the times do not shrink, or shrink faster than k (caches); it is clamped and the line fitted
again, so that the residual belongs to the share returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class AmdahlFit:
    """The parallel share, the fitted time of one replica, and the relative root mean square residual."""

    share: float
    at_one_s: float
    residual: float


def fit_amdahl(seconds_at: Mapping[int, float]) -> AmdahlFit:
    """Return the share in [0, 1] that fits times by replica count best; a single count gives share 1."""
    counts = np.array(list(seconds_at), dtype=np.float64)
    seconds = np.array(list(seconds_at.values()), dtype=np.float64)
    if not seconds.any():
        return AmdahlFit(1.0, 0.0, 0.0)
    inverse = 1 / counts
    if len(counts) == 1:
        return AmdahlFit(1.0, float(seconds[0] / inverse[0]), 0.0)
    slope, intercept = np.polyfit(inverse, seconds, 1)
    epsilon = _ROUNDING * seconds.mean()
    if slope <= epsilon:
        intercept, slope = seconds.mean(), 0.0
    elif intercept <= epsilon:
        intercept, slope = 0.0, float(inverse @ seconds / (inverse @ inverse))
    at_one = float(intercept + slope)
    residual = np.sqrt(np.mean((intercept + slope * inverse - seconds) ** 2)) / at_one
    return AmdahlFit(float(slope / at_one), at_one, float(residual))
