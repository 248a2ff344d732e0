"""A policy of one's own: docs/guides/policies.md explains it, `berth simulate --policy mine.py` runs it."""

import math
from dataclasses import dataclass

from berth.schedule.policy import Policy, Rules


@dataclass(frozen=True)
class Patient(Policy):
    """Small and long-waiting jobs go first; a gang spreads once it has waited as long as it will run."""

    weight: float = 1.0

    def rules(self):
        return Rules(steady=False)  # the order of the waiting changes with time

    @staticmethod
    def order(job, now, my):  # smallest first
        return job.gpus - my.weight * (now - job.since) / 3600

    @staticmethod
    def reach(job, now, my):  # the widest tier it accepts: job.floor is the nearest there can be
        return job.widest if now >= patience(job) else job.floor

    @staticmethod
    def wake(job, now, my):  # when to ask again, if nothing happens before
        return patience(job) if now < patience(job) else math.inf


def patience(job):
    return job.since + job.remaining
