"""A policy of one's own: docs/guides/policies.md explains it, `berth simulate --policy mine.py` runs it."""

import math
from dataclasses import dataclass

from berth.schedule.policy import Policy, Rules


@dataclass(frozen=True)
class Patient(Policy):
    """Small and long-waiting jobs go first; a gang spreads once it has waited as long as it will run."""

    weight: float = 1.0

    def rules(self):
        return Rules(static_order=False)  # the order of the waiting changes with time

    @staticmethod
    def order(job, now, params):  # smallest first
        return job.gpus - params.weight * (now - job.queued_since_s) / 3600

    @staticmethod
    def allowed_tier(
        job, now, params
    ):  # the widest tier it accepts; job.nearest_tier: the nearest there can be
        return job.widest_tier if now >= patience(job) else job.nearest_tier

    @staticmethod
    def wake(job, now, params):  # when to ask again, if nothing happens before
        return patience(job) if now < patience(job) else math.inf


def patience(job):
    return job.queued_since_s + job.estimated_remaining_s
