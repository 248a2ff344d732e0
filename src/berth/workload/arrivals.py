"""Arrival processes: gaps between submissions, and the daily cycle.

An arrival process gives positions between 0 and 1; the generator stretches them over the span that gives the
load. The daily cycle then moves them within the span, towards the busy hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from berth.arrays import FloatArray
from berth.errors import InputError, UnknownNameError
from berth.units import number_between
from berth.workload import reproducible_arrays as reproducible

ArrivalKind = Literal["poisson", "bursty", "at-once"]
KINDS: tuple[ArrivalKind, ...] = ("poisson", "bursty", "at-once")
DEFAULT_BURSTINESS = 8.0
_DAY_S = 86400.0
_STEP_S = 900.0  # the rate is constant within a quarter of an hour
_BUSIEST_S = 14 * 3600.0  # a trace begins at midnight; its days are busiest at two in the afternoon


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`burstiness` is the squared coefficient of variation of the gaps; 1 is Poisson, more is bursty."""

    kind: ArrivalKind = "poisson"
    burstiness: float = 1.0
    daily: float = 0.0  # 0: every hour alike, 1: the quietest hour has no arrivals at all

    def positions(self, uniform: FloatArray) -> FloatArray:
        """Return the position of each job in the span, from 0 (the first) to 1 (the last), from two numbers per job."""
        jobs = len(uniform)
        if self.kind == "at-once" or jobs == 1:
            return np.zeros(jobs)
        gaps = -reproducible.log(1 - uniform[1:, 0])
        if self.kind == "bursty":
            gaps /= self._rates(uniform[1:, 1])
        times = np.concatenate([[0.0], np.cumsum(gaps)])
        return times / times[-1] if times[-1] > 0 else np.linspace(0.0, 1.0, jobs)

    def times(self, positions: FloatArray, span_s: float) -> FloatArray:
        """Return positions stretched over the span; with a daily cycle, more of them in the busy hours."""
        if self.daily == 0:
            return positions * span_s
        clock, arrived = self._day()
        whole, rest = divmod(span_s, _DAY_S)
        in_all = whole * _DAY_S + float(reproducible.interpolate(np.asarray([rest]), clock, arrived)[0])
        day, left = np.divmod(positions * in_all, _DAY_S)
        return np.asarray(day * _DAY_S + reproducible.interpolate(left, arrived, clock), dtype=np.float64)

    def _day(self) -> tuple[FloatArray, FloatArray]:
        """Times of one day, and the arrivals up to each (as seconds of a mean day)."""
        clock = np.arange(0.0, _DAY_S + _STEP_S, _STEP_S)
        turn = 2 * math.pi / _DAY_S
        # The integral of the rate 1 + daily * cos(turn * (clock - busiest)).
        busiest = np.asarray([_BUSIEST_S / _DAY_S])
        wave = reproducible.sin_of_turns((clock - _BUSIEST_S) / _DAY_S) + reproducible.sin_of_turns(busiest)
        arrived = np.round(clock + self.daily / turn * wave, 6)
        arrived[-1] = _DAY_S  # days join exactly
        return clock, arrived

    def _rates(self, uniform: FloatArray) -> FloatArray:
        """Two rates with balanced means (a hyperexponential): mean and burstiness come out exactly."""
        lean = math.sqrt((self.burstiness - 1) / (self.burstiness + 1))
        often = (1 + lean) / 2
        return np.where(uniform < often, 2 * often, 2 * (1 - often))


def load_arrivals(text: str, daily: float = 0.0) -> Arrivals:
    """Return the arrival process of `poisson`, `bursty`, `bursty:16` or `at-once`."""
    name, colon, written = text.strip().lower().partition(":")
    kind = next((kind for kind in KINDS if kind == name), None)
    if kind is None:
        raise UnknownNameError("arrival process", name, KINDS)
    if not 0 <= daily <= 1:
        raise InputError(
            f"the daily cycle is a share from 0 to 1 (given: {daily:g})", hint="0.5 is a usual day"
        )
    if colon and kind != "bursty":
        raise InputError(f"arrivals {text!r}: {kind} has no number", hint="only bursty has: bursty:16")
    burstiness = _burstiness(written, text) if colon else DEFAULT_BURSTINESS
    return Arrivals(kind, burstiness if kind == "bursty" else 1.0, daily)


def _burstiness(written: str, text: str) -> float:
    value = number_between(written, 1, 1000)
    if value is None:
        raise InputError(
            f"arrivals {text!r}: burstiness is a number from 1 to 1000", hint="1 is Poisson, 8 bursty"
        )
    return value
