"""What time it is: the machine's clock, or one that a test turns by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock, which may jump, and a monotonic one, which never does."""

    def wall(self) -> float:
        """Seconds since 1970."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""


class MachineClock:
    """The clocks of this machine."""

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic()


class HandClock:
    """Stands still until it is turned."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._wall = start
        self._monotonic = 0.0

    def wall(self) -> float:
        """Where the hands stand."""
        return self._wall

    def monotonic(self) -> float:
        """How far they were turned forward."""
        return self._monotonic

    def turn(self, seconds: float) -> None:
        """Time passes."""
        self._wall += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._wall += seconds


class SteadyTime:
    """Time that agrees with the wall clock when it starts, and never runs backwards or jumps after that."""

    def __init__(self, clock: Clock, not_before: float = 0.0) -> None:
        self._clock = clock
        self._begin = max(clock.wall(), not_before)
        self._monotonic = clock.monotonic()

    def now(self) -> float:
        """Seconds since 1970, as far as the wall clock could be believed at the start."""
        return self._begin + (self._clock.monotonic() - self._monotonic)
