"""Gandiva (Xiao et al., OSDI 2018): everybody gets a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from berth.schedule.policies.constant import duration, number
from berth.schedule.policy import Policy, Preempt, Rules


@dataclass(frozen=True)
class Gandiva(Policy):
    """Packs, else takes fresh machines, else takes turns in short slices; moves up when a nearer place opens.

    Turns are taken gang by gang over the whole cluster rather than on each machine's own devices.
    """

    slice: float = duration("60s", "how long a turn is")
    move_up: float = number(2, "a job moves to a nearer place if that saves so many times the cost; 0: never")
    eviction: float = duration("100ms", "what suspending and resuming costs: its own figure, not the run's")

    def rules(self) -> Rules:
        """Turns at the slice's pace."""
        return Rules(
            preempt=Preempt.BY_ORDER,
            steady=True,
            period_s=self.slice,
            move_up=self.move_up,
            eviction_s=self.eviction,
        )

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """Who has waited longest; who runs has had its turn a slice after it began."""
        if job.tier < 0 or job.started == now:
            return job.since
        return job.started + my.slice
