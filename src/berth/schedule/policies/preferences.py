"""What one can ask of the schedulers in use today: near if possible, near or never, near for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

from berth.schedule import Blocked, JobView, Policy, Rules, StaticOrder, choice, duration
from berth.schedule.policies.fifo import FitFirst


@dataclass(frozen=True)
class Preferred(FitFirst):
    """Near if that is possible now, else anywhere at once (`preferred` topology in Kueue and KAI)."""


@dataclass(frozen=True)
class Required(FitFirst):
    """Waits for the nearest place for as long as it takes (`required` topology in Kueue and KAI)."""

    @staticmethod
    def allowed_tier(job: JobView, now: float, params: Required) -> int:
        """Never wider than the nearest tier."""
        return job.nearest_tier


@dataclass(frozen=True)
class Switches(Policy):
    """Waits for the nearest place a fixed time, then takes any (Slurm's `--switches=N@time`)."""

    wait: float = duration("5m", "how long a job waits; Slurm allows 5m by default")
    backfill: bool = choice(True, "whether a job that overtakes must not delay the first waiting job")

    def rules(self) -> Rules:
        """With backfill, as Slurm is mostly run."""
        return Rules(order=StaticOrder(), blocked=Blocked.BACKFILL if self.backfill else Blocked.SKIP)

    @staticmethod
    def allowed_tier(job: JobView, now: float, params: Switches) -> int:
        """The nearest tier, until the time is over."""
        return job.widest_tier if now >= job.queued_since_s + params.wait else job.nearest_tier

    @staticmethod
    def wake(job: JobView, now: float, params: Switches) -> float:
        """When the time is over."""
        return job.queued_since_s + params.wait if now < job.queued_since_s + params.wait else math.inf
