"""berth's own policy: nobody chooses timers. How long a wait will be is read from what runs now.

The order is the user's choice (first come, or least attained service). The rule is about places:

1. Everyone, most deserving first, who fits at the nearest tier that can ever hold it starts there.
2. For the first few who do not, though enough devices are free: running jobs step aside, each to a place no
   farther than its own, if the wait that this spares is worth `defragment` times what restoring them costs.
   The wait is the look-ahead wait: until enough of what runs inside one group of that tier has ended.
3. Over devices that would idle now a job may spread if what the distance costs it, remaining work times the
   extra slow-down there, is below `share` of its look-ahead wait.
4. A spread job moves to a nearer place that has opened if that saves `move_up` times what moving costs.
5. Nobody waits for ever. At FIFO order nobody is evicted: the job that has waited longest, once over
   `hold_after`, has the soonest free group held for it, if that comes free within `hold_share` of its wait
   so far; meanwhile only those who end in time may use it. At LAS order a job displaces running ones of a
   lower queue at once, and equals that came later only after `patience`.

Remaining times need not be exact: only the comparisons of 2 to 4 use them, and an error makes a job wait or
spread when it should not have, never wait for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from berth.schedule.policies.constant import duration, number, word
from berth.schedule.policy import Policy, Preempt, Rules

FIRST_LIMIT_GPU_S, SECOND_LIMIT_GPU_S = 3250.0, 7200.0  # the queues of Tiresias' simulator (2019)


class Rank(StrEnum):
    """Who goes first."""

    FIFO = "fifo"  # who came first; nobody is evicted
    LAS = "las"  # who has had least GPU-time, in three queues; lower queues make way (2D-LAS)


@dataclass(frozen=True)
class Berth(Policy):
    """Waits for a near place while that is cheaper, by the expected ends of what runs."""

    order_by: str = word("fifo", "fifo las", "who goes first", name="order")
    share: float = number(0.5, "of the look-ahead wait that spreading may cost; 0: never spread")
    move_up: float = number(2, "times the cost of moving that a nearer place must save; 0: never move")
    defragment: float = number(2, "times the cost of stepping aside that a wait must be worth; 0: never")
    shape: float = number(0.1, "slow-down by an uneven spread over machines that nothing is done about")
    farther: float = number(0, "x")
    gate: float = number(0, "x")
    gate_k: float = number(1, "x")
    hold_after: float = duration("4d", "fifo: waiting so long, a job has a place held for it")
    hold_share: float = number(0.25, "fifo: of its wait so far, within which that place must come free")
    patience: float = duration("1h", "las: waiting so long, a job may take the place of an equal")
    first: float = number(FIRST_LIMIT_GPU_S, "las: GPU-seconds at which a job leaves the first queue")
    second: float = number(SECOND_LIMIT_GPU_S, "las: GPU-seconds at which it leaves the second")

    def rules(self) -> Rules:
        """Step aside, look ahead, move up, bounded waits; preemption only where the order asks for it."""
        las = self.order_by == Rank.LAS
        return Rules(
            steady=True,
            look_ahead=self.share > 0,
            move_up=self.move_up,
            defragment=self.defragment,
            shape=self.shape,
            farther=self.farther > 0,
            hold_after_s=self.patience if las else self.hold_after,
            hold_share=self.hold_share,
            wakes=las,
            spares_equals=True,
            preempt=Preempt.BY_ORDER if las else Preempt.NEVER,
        )

    @staticmethod
    def order(job: Any, now: float, my: Any) -> float:
        """First come; or the queue of what it has attained, then first come."""
        if my.order_by == 0:
            return job.arrival
        if job.attained < my.first:
            return 0.0
        return 1.0 if job.attained < my.second else 2.0

    @staticmethod
    def wake(job: Any, now: float, my: Any) -> float:
        """When a running job sinks to the next queue; only they are asked, as waiting ones keep theirs."""
        if job.head < 0 or my.order_by == 0:
            return math.inf
        limit = my.first if job.attained < my.first else my.second
        at = job.touched + (limit - job.attained) / job.gpus
        return at if at > now else math.inf

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> int:
        """In the first place only the nearest tier."""
        return job.floor

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, my: Any) -> int:
        """1 if running at `tier` costs less than a share of the wait for the nearest place."""
        if my.gate == 1 and job.remaining > my.gate_k * wait:
            return 0
        if my.gate == 2:
            w = min(wait, job.remaining * job.slow[tier])
            if my.gate_k * job.gpus * w * w > job.usual * wait:
                return 0
        if my.gate == 3:
            w = min(wait, job.remaining * job.slow[tier])
            if my.gate_k * (job.gpus - max(0, job.idle)) * w * w > job.usual * wait:
                return 0
        if my.gate == 4 and job.remaining * job.gpus > my.gate_k * wait:
            return 0
        if my.gate == 5 and job.remaining * job.gpus > my.gate_k * job.usual and job.remaining > wait:
            return 0
        return 1 if job.remaining * (job.slow[tier] * job.bent - job.slow[job.floor]) < my.share * wait else 0
