"""Optimus (Peng et al., EuroSys 2018): devices go where they shorten completion most."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import JobView, Policy, PreemptByOrder, Rules, StaticOrder, duration


@dataclass(frozen=True)
class Optimus(Policy):
    """The gang that shortens the sum of completion times most per GPU goes first, in rounds.

    Optimus gives one worker after the other to the job that gains most by it. A rigid gang has one step only,
    from nothing to all: over a round, one second of progress per second, bought with its GPUs for the
    time left. So its gain is 1 / (time left where it runs x GPUs): least GPU time left, with distance.
    """

    round: float = duration("10m", "length of a round")

    def rules(self) -> Rules:
        """The jobs that gain most run, for a round."""
        return Rules(order=StaticOrder(), preempt=PreemptByOrder(period_s=self.round))

    @staticmethod
    def order(job: JobView, now: float, params: Optimus) -> float:
        """Least GPU time left."""
        return job.estimated_remaining_s * job.gpus * (job.slowdown[job.tier] if job.tier >= 0 else 1.0)
