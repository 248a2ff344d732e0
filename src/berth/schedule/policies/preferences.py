"""What one can ask of the schedulers in use today: near if possible, near or never, near for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from berth.schedule.policies.constant import duration, word
from berth.schedule.policy import Blocked, Policy, Rules


@dataclass(frozen=True)
class Preferred(Policy):
    """Near if that is possible now, else anywhere at once (`preferred` topology in Kueue and KAI)."""

    def rules(self) -> Rules:
        """Arrivals do not change."""
        return Rules(steady=True)


@dataclass(frozen=True)
class Required(Policy):
    """Waits for the nearest place for as long as it takes (`required` topology in Kueue and KAI)."""

    def rules(self) -> Rules:
        """Arrivals do not change."""
        return Rules(steady=True)

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> int:
        """Never wider than the nearest tier."""
        return job.floor


@dataclass(frozen=True)
class Switches(Policy):
    """Holds out for the nearest place a fixed time, then takes anything (Slurm's `--switches=N@time`)."""

    wait: float = duration("5m", "how long a job holds out; Slurm allows 5m unless told otherwise")
    backfill: str = word("yes", "no yes", "whether who passes must not delay the first who waits")

    def rules(self) -> Rules:
        """With backfill, as Slurm is mostly run."""
        return Rules(steady=True, blocked=Blocked.BACKFILL if self.backfill == "yes" else Blocked.SKIP)

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> int:
        """The nearest tier, until the time is over."""
        return job.widest if now >= job.since + my.wait else job.floor

    @staticmethod
    def wake(job: Any, now: float, my: Any) -> float:
        """When the time is over."""
        return job.since + my.wait if now < job.since + my.wait else math.inf
