"""Shortest first, for schedulers that know how long jobs take."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule.policy import Policy
from berth.schedule.rules import PreemptByOrder, Rules, StaticOrder
from berth.schedule.views import JobView


@dataclass(frozen=True)
class Sjf(Policy):
    """The shortest job goes first; running jobs are left alone, and a job that fits may overtake one that does not."""

    def rules(self) -> Rules:
        """What is left of a waiting job does not change."""
        return Rules(order=StaticOrder())

    @staticmethod
    def order(job: JobView, now: float, params: Sjf) -> float:
        """Least work left, which is all of it before the first start."""
        return job.estimated_remaining_s


@dataclass(frozen=True)
class Srtf(Sjf):
    """Least remaining time goes first, and preempts others."""

    def rules(self) -> Rules:
        """The jobs that go first run."""
        return Rules(order=StaticOrder(), preempt=PreemptByOrder(monotone_order=True))


@dataclass(frozen=True)
class Srsf(Srtf):
    """Least remaining GPU time (time x GPUs) goes first, and preempts others."""

    @staticmethod
    def order(job: JobView, now: float, params: Sjf) -> float:
        """Least GPU time left."""
        return job.estimated_remaining_s * job.gpus
