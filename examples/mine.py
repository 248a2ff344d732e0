"""A policy of one's own: docs/guides/policies.md explains it, `berth simulate --policy mine.py` runs it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from berth.schedule import JobView, Policy


@dataclass(frozen=True)
class Patient(Policy):
    """Small and long-waiting jobs go first; a gang spreads once it has waited as long as it will run."""

    weight: float = 1.0

    @staticmethod
    def order(job: JobView, now: float, params: Patient) -> float:
        return job.gpus - params.weight * (now - job.queued_since_s) / 3600  # the smallest number goes first

    @staticmethod
    def allowed_tier(job: JobView, now: float, params: Patient) -> int:
        return job.widest_tier if now >= patience_ends_s(job) else job.nearest_tier

    @staticmethod
    def wake(job: JobView, now: float, params: Patient) -> float:
        return patience_ends_s(job) if now < patience_ends_s(job) else math.inf  # when to ask again


def patience_ends_s(job: JobView) -> float:
    return job.queued_since_s + job.estimated_remaining_s
