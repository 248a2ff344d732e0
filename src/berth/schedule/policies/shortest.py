"""Shortest first, for schedulers that know how long jobs take."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import JobView, PreemptByOrder, Rules, StaticOrder
from berth.schedule.policies.fifo import FitFirst


@dataclass(frozen=True)
class Sjf(FitFirst):
    """The shortest job goes first; running jobs are left alone, and a job that fits may overtake one that does not."""

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
