"""berth's own policy: nobody chooses timers; what runs now says how long a wait will be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from berth.schedule.policy import Policy, Preempt, Rules

FIRST_LIMIT_GPU_S, SECOND_LIMIT_GPU_S = 3250.0, 7200.0  # the queues of Tiresias' simulator (2019)


class Rank(IntEnum):
    """Who goes first."""

    FIFO = 0  # who came first
    LAS = 1  # who has had least GPU-time, in three queues; the others make way (2D-LAS)


@dataclass(frozen=True)
class Berth(Policy):
    """Wait for a near place as long as that is cheaper, by the running jobs' expected ends."""

    share: float = 0.5
    move_up: float = 2.0
    hold_after_s: float = 3600.0
    defragment: float = 2.0
    rank: Rank = Rank.FIFO
    spares_equals: float = 1.0
    first_limit: float = FIRST_LIMIT_GPU_S
    second_limit: float = SECOND_LIMIT_GPU_S

    def rules(self) -> Rules:
        """Look ahead, move up, hold."""
        las = self.rank == Rank.LAS
        return Rules(
            steady=True,
            look_ahead=True,
            move_up=self.move_up,
            hold_after_s=self.hold_after_s,
            defragment=self.defragment,
            wakes=las,
            spares_equals=bool(self.spares_equals),
            preempt=Preempt.BY_ORDER if las else Preempt.NEVER,
        )

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """First come, or least served."""
        if my.rank == 0:
            return job.arrival
        if job.attained < my.first_limit:
            return 0.0
        return 1.0 if job.attained < my.second_limit else 2.0

    @staticmethod
    def wake(job: Any, now: float, my: Any) -> float:
        """When a running job sinks a queue."""
        if job.state != 2 or my.rank == 0:
            return math.inf
        limit = my.first_limit if job.attained < my.first_limit else my.second_limit
        at = job.touched + (limit - job.attained) / job.gpus
        return at if at > now else math.inf

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> int:
        """In the first place only the nearest tier."""
        return job.floor

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, my: Any) -> int:
        """Whether running spread loses less than a share of the wait."""
        return 1 if job.remaining * (job.slow[tier] - job.slow[job.floor]) < my.share * wait else 0
