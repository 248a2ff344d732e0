"""Gandiva (Xiao et al., OSDI 2018): every job gets a turn."""

from __future__ import annotations

from dataclasses import dataclass

from berth.schedule import JobView, Migrate, Policy, PreemptByOrder, Rules, StaticOrder, duration, number


@dataclass(frozen=True)
class Gandiva(Policy):
    """Packs, else takes empty machines, else takes turns in short slices; moves to a nearer place that comes free.

    Turns are taken gang by gang over the whole cluster rather than on each machine's own devices.
    """

    slice: float = duration("60s", "how long a turn is")
    move_up: float = number(
        2, "a job moves to a nearer place if that saves this many times the cost; 0: never"
    )
    eviction: float = duration("100ms", "what suspending and resuming costs: its own figure, not the run's")

    def rules(self) -> Rules:
        """Turns at the slice's pace."""
        return Rules(
            order=StaticOrder(),
            preempt=PreemptByOrder(period_s=self.slice),
            migrate=Migrate(gain=self.move_up),
            eviction_s=self.eviction,
        )

    @staticmethod
    def order(job: JobView, now: float, params: Gandiva) -> float:
        """The job that has waited longest; a running job has had its turn a slice after its start."""
        if job.tier < 0 or job.started_s == now:
            return job.queued_since_s
        return job.started_s + params.slice
