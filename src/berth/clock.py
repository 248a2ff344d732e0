"""Clocks: the clock of this machine, and one that tests advance by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock, which may jump, and a monotonic clock, which never does."""

    def wall(self) -> float:
        """Seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""


class MachineClock:
    """The clocks of this machine."""

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._wall = start
        self._monotonic = 0.0

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._wall

    def monotonic(self) -> float:
        """Seconds by which the clock was advanced."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._wall += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back; the monotonic clock does not change."""
        self._wall += seconds


class SteadyTime:
    """Wall-clock time at the start, then monotonic: never decreases and never jumps."""

    def __init__(self, clock: Clock, not_before: float = 0.0) -> None:
        self._clock = clock
        wall = clock.wall()
        self._begin = max(wall, not_before)
        self.ahead_s = self._begin - wall  # of the wall clock, at the start
        self._monotonic = clock.monotonic()

    def now(self) -> float:
        """Seconds since 1970, as of the wall clock at the start."""
        return self._begin + (self._clock.monotonic() - self._monotonic)
