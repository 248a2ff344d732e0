"""Themis (Mahajan et al., NSDI 2020): nobody should end much later than alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.schedule.policies.constant import duration
from berth.schedule.policy import Policy, Preempt, Rules


@dataclass(frozen=True)
class Themis(Policy):
    """The job whose completion is stretched most, against running alone from arrival, goes first; by leases.

    rho = (time since arrival + time left) / time it needs alone. The auction between users and its
    fairness knob are left out: every job is its own user and all devices are offered to all.
    """

    lease: float = duration("20m", "how long devices are given before all is decided anew")

    def rules(self) -> Rules:
        """Who suffers most runs, for a lease."""
        return Rules(preempt=Preempt.BY_ORDER, period_s=self.lease)

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Highest rho first."""
        stretch = job.slow[job.tier] if job.tier >= 0 else 1.0
        return -(now - job.arrival + job.remaining * stretch) / max(1.0, job.work * job.doubt)
