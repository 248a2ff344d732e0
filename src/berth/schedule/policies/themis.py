"""Themis (Mahajan et al., NSDI 2020): no job should end much later than alone."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import JobView, Policy, PreemptByOrder, Rules, duration


@dataclass(frozen=True)
class Themis(Policy):
    """The job whose completion is stretched most, against running alone from arrival, goes first; by leases.

    rho = (time since arrival + time left) / time it needs alone. The auction between users and its
    fairness knob are left out: every job is its own user and all devices are offered to all.
    """

    lease: float = duration("20m", "how long a job keeps its devices before all is decided again")

    def rules(self) -> Rules:
        """The jobs that are stretched most run, for a lease."""
        return Rules(preempt=PreemptByOrder(period_s=self.lease))

    @staticmethod
    def order(job: JobView, now: float, params: Themis) -> float:
        """Highest rho first."""
        stretch = job.slowdown[job.tier] if job.tier >= 0 else 1.0
        return -(now - job.arrival_s + job.estimated_remaining_s * stretch) / max(
            1.0, job.work_s * job.estimate_error
        )
