"""First come, first served: strict, overtaking jobs that do not fit, or overtaking only without delaying them."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import Blocked, Policy, Rules, StaticOrder


@dataclass(frozen=True)
class Fifo(Policy):
    """Strict first come, first served: no job overtakes another."""

    def rules(self) -> Rules:
        """No job overtakes the first."""
        return Rules(order=StaticOrder(), blocked=Blocked.STOP)


@dataclass(frozen=True)
class FitFirst(Policy):
    """First come, first served, but a job that fits may overtake one that does not."""

    def rules(self) -> Rules:
        """Arrivals do not change."""
        return Rules(order=StaticOrder())


@dataclass(frozen=True)
class Easy(Policy):
    """First come, first served, with EASY backfill: a job that overtakes must not delay the first waiting job.

    The first job that does not fit has the soonest place reserved for it, read from the remaining times of what
    runs. Others may start if they end before then, or on devices it will not need (Lifka, 1995). Without a network
    that holds exactly. With one, ends are expected at present speeds and at the slow-down of a tier: a job that
    passes may slow others on its links, and the first may start later, by at most the time the two overlap.
    """

    def rules(self) -> Rules:
        """A job that does not fit has a place reserved."""
        return Rules(order=StaticOrder(), blocked=Blocked.BACKFILL)
