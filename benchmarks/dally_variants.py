"""Readings of Dally that its abstract leaves open, as policies: see docs/design/dally.md.

`OfferClock`: timers run from the first offer after arrival or eviction, not from the arrival itself. An offer is a pass
that begins with enough free devices for the job, at whatever distance.
`FreshNearest`: a job that never ran is ranked by its efficiency at the nearest tier, not at the widest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from berth.schedule import ClusterView, JobView, Rules
from berth.schedule.policies.dally import Dally, efficiency
from berth.schedule.policies.las import LasJob


class OfferedJob(LasJob):
    """What the timers remember of a job."""

    offered_s: float  # when enough devices were first free for it since it waits


@dataclass(frozen=True)
class OfferClock(Dally):
    """Dally whose timers start at the first offer."""

    Job = OfferedJob

    def rules(self) -> Rules:
        """As Dally's, but jobs are looked at in every pass."""
        return replace(super().rules(), order=None)

    @staticmethod
    def update(job: OfferedJob, now: float, params: Dally, cluster: ClusterView) -> None:  # type: ignore[override]
        """Remembers the first offer since the job waits; one at 0 s is seen in the next pass."""
        if job.tier >= 0 or (job.offered_s > 0.0 and job.offered_s >= job.queued_since_s):
            return
        free = 0
        for device_type in range(cluster.device_types):
            free += cluster.free[device_type]
        if free >= job.gpus:
            job.offered_s = now

    @staticmethod
    def allowed_tier(job: OfferedJob, now: float, params: Dally) -> int:  # type: ignore[override]
        """One tier wider after each timer."""
        return offered_tier(job, now)[0]

    @staticmethod
    def wake(job: OfferedJob, now: float, params: Dally) -> float:  # type: ignore[override]
        """When the next timer is over."""
        return math.inf if job.tier >= 0 else offered_tier(job, now)[1]


def offered_tier(job: OfferedJob, now: float) -> tuple[int, float]:
    """(the tier a job would accept by now, when it will accept a wider one)."""
    offered = job.offered_s > 0.0 and job.offered_s >= job.queued_since_s
    due = job.offered_s if offered else now
    for tier in range(job.nearest_tier, job.widest_tier):
        due += job.delay_timer_s[tier]
        if now < due:
            return tier, due
    return job.widest_tier, math.inf


@dataclass(frozen=True)
class FreshNearest(Dally):
    """Dally that takes a job which never ran to be hurt as little as its nearest tier allows."""

    @staticmethod
    def order(job: LasJob, now: float, params: Dally) -> float:
        """Most hurt by the network first."""
        return at_nearest(job)

    @staticmethod
    def cost(victim: JobView, job: JobView, now: float, params: Dally) -> float:
        """What a victim loses one tier wider; never a job slowed as much, nor one about to finish."""
        if victim.estimated_remaining_s < params.nearly_done or at_nearest(victim) <= at_nearest(job):
            return math.inf
        wider = victim.slowdown[min(victim.widest_tier, victim.nearest_tier + 1)]
        return victim.estimated_remaining_s * max(0.0, wider - victim.slowdown[victim.tier])


def at_nearest(job: JobView) -> float:
    """Share of its run time that was computation; before its first run, at the nearest tier."""
    return job.compute_share if job.ran_s <= 0.0 else efficiency(job)
