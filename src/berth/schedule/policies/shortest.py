"""Shortest first, for schedulers that know how long jobs take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.schedule.policy import Policy, Preempt, Rules


@dataclass(frozen=True)
class Sjf(Policy):
    """The shortest job goes first; who runs is left alone, and who fits may pass who does not."""

    def rules(self) -> Rules:
        """What is left of a waiting job does not change."""
        return Rules(steady=True)

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Least work left, which is all of it before the first start."""
        return job.remaining


@dataclass(frozen=True)
class Srtf(Sjf):
    """Least time left goes first, and takes the place of others."""

    def rules(self) -> Rules:
        """The most deserving run."""
        return Rules(steady=True, preempt=Preempt.BY_ORDER, keys_hold=True)


@dataclass(frozen=True)
class Srsf(Srtf):
    """Least GPU time left (time x GPUs) goes first, and takes the place of others."""

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Least GPU time left."""
        return job.remaining * job.gpus
