"""First come, first served."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule.policy import Blocked, Policy, Rules


@dataclass(frozen=True)
class Fifo(Policy):
    """Strict: who comes first goes first, and nobody passes."""

    def rules(self) -> Rules:
        """Nobody passes the first."""
        return Rules(steady=True, blocked=Blocked.STOP)
