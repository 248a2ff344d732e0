"""First come, first served: strictly, passing who does not fit, or passing only where that delays nobody."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule.policy import Blocked, Policy, Rules


@dataclass(frozen=True)
class Fifo(Policy):
    """Who comes first goes first, and nobody passes."""

    def rules(self) -> Rules:
        """Nobody passes the first."""
        return Rules(steady=True, blocked=Blocked.STOP)


@dataclass(frozen=True)
class FitFirst(Policy):
    """First come, first served, but who fits may pass who does not."""

    def rules(self) -> Rules:
        """Arrivals do not change."""
        return Rules(steady=True)


@dataclass(frozen=True)
class Easy(Policy):
    """First come, first served, with EASY backfill: who passes must not delay the first who waits.

    The first job that does not fit has the soonest place held for it, read from the remaining times of what
    runs. Others may start if they end before then, or on devices it will not need (Lifka, 1995). Without a network
    that holds exactly. With one, ends are expected at present speeds and at the slow-down of a tier: a job that
    passes may slow others on its links, and the first may start later, by at most the time the two overlap.
    """

    def rules(self) -> Rules:
        """Who does not fit has a place held."""
        return Rules(steady=True, blocked=Blocked.BACKFILL)
