"""berth's own policy, without timers: how long a wait will be is computed from what runs now.

The order is the user's choice. By default it is that of arrival, with a head start for the jobs that distance slows
most. The rule is about places:

1. Every job, in order, that fits at the nearest tier that can ever hold it starts there. A gang on
   several machines is spread evenly over them where that matters to it: see schedule/balance.py.
2. For the first few that do not fit, though enough devices are free: running jobs move, each to a place no
   farther than its own, if the wait that this spares is worth `defragment` times what it costs them. The
   wait is the look-ahead wait: until enough of what runs inside one group of that tier has ended. At the
   default order they may also go farther, at the cost of what that slows them: jobs that
   distance does not slow make way for those that it does.
3. Over devices that would idle now a job may spread if what the distance costs it, remaining work times the
   extra slow-down there, is below `share` of its look-ahead wait.
4. Neither 2 nor 3 for a job that puts off too many others: on its devices gpus x w / usual usual jobs could
   run in w seconds, each put off by up to w. w is how long it would run there, at most its look-ahead wait
   (after that it would run anyway); `usual` is the geometric mean of the device-seconds of recent jobs. A
   gang that finds its nearest tier, but unevenly, weighs only its own loss against its own wait.
5. A spread job moves to a nearer or more even place that has opened if that saves `move_up` times what
   moving costs.
6. Every wait is bounded. Where no job is evicted, the job that has waited longest, once over `hold_after`, has
   the soonest free group reserved for it, if that comes free within `hold_share` of its wait so far; meanwhile
   only jobs that end in time may use it. At LAS order lower queues make way at once, and a job that has waited
   `patience` goes before all others, for a run of `turn`.

Remaining times need not be exact: only the comparisons of 2 to 5 use them, and an error makes a job wait or
spread when it should not have, never wait forever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from berth.schedule.policies.constant import duration, number, word
from berth.schedule.policies.las import place_in_line, rank, sinks_at
from berth.schedule.policy import Policy, Preempt, Rules

_NETWORK, _FIFO, _LAS = 0, 1, 2  # places in the list of words of `order`


class Rank(StrEnum):
    """Which job goes first."""

    NETWORK = "network"  # first come, with a head start for jobs that distance slows
    FIFO = "fifo"  # first come; no job is evicted
    LAS = "las"  # least GPU time so far, in three queues; lower queues make way (2D-LAS)


@dataclass(frozen=True)
class Berth(Policy):
    """Waits for a near place while that is cheaper, by the expected ends of running jobs."""

    order_by: str = word("network", "network fifo las", "which job goes first", name="order")
    share: float = number(0.5, "of the look-ahead wait that spreading may cost; 0: never spread")
    move_up: float = number(2, "times the cost of moving that a nearer place must save; 0: never move")
    defragment: float = number(2, "times the cost of stepping aside that a wait must be worth; 0: never")
    others: float = number(
        1, "weight of the waits of jobs delayed by a spread start or by defragmentation; 0: none"
    )
    shape: float = number(0.1, "slowdown by an uneven spread over machines that is tolerated")
    head_start: float = duration(
        "1h", "network: of a job that distance would stop, over one that it does not slow"
    )
    hold_after: float = duration(
        "4d", "network, fifo: a job that has waited this long has a place reserved for it"
    )
    hold_share: float = number(0.25, "network, fifo: of its wait so far, within which that place comes free")
    patience: float = duration("2d", "las: a job that has waited this long goes before all others")
    turn: float = duration("1h", "las: and stays so until it has run for this time")
    first: float = number(3250, "las: GPU-seconds at which a job leaves the first queue")
    second: float = number(7200, "las: GPU-seconds at which it leaves the second")

    def rules(self) -> Rules:
        """Step aside, look ahead, move up, bounded waits; preemption only where the order asks for it."""
        las = self.order_by == Rank.LAS
        return Rules(
            static_order=True,
            relax_locality=self.share > 0,
            migrate_gain=self.move_up,
            defragment=self.defragment,
            defragment_farther=self.order_by == Rank.NETWORK,
            imbalance_tolerance=self.shape,
            reserve_after_s=math.inf if las else self.hold_after,
            reserve_share=self.hold_share,
            reorder_after_s=self.patience if las else math.inf,
            wake_running=las,
            preempt=Preempt.BY_ORDER if las else Preempt.NEVER,
        )

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """First come, with or without head start; or the queue of what it has attained."""
        if params.order_by == _LAS:
            return queue_or_turn(job, now, params.first, params.second, params.patience, params.turn)
        if params.order_by == _NETWORK:
            return job.arrival_s - params.head_start * (1.0 - 1.0 / job.slowdown[job.widest_tier])
        return job.arrival_s

    @staticmethod
    def tie_break(job: Any, now: float, params: Any) -> float:
        """Inside a queue: who runs, then as they joined its line."""
        return place_in_line(job) if params.order_by == _LAS else 0.0

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        """When a running job sinks to the next queue or its turn ends; waiting ones keep theirs."""
        if job.tier < 0 or params.order_by != _LAS:
            return math.inf
        at = sinks_at(job, now, params.first, params.second)
        if job.attained_gpu_s < job.notes[3]:
            at = min(at, now + (job.notes[3] - job.attained_gpu_s) / job.gpus)
        return at

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        """In the first place only the nearest tier."""
        return job.nearest_tier

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        """1 if it should start at `tier` now rather than wait, for its own sake and for that of others."""
        slow = job.slowdown[tier] * job.imbalance_slowdown
        holds = min(wait, job.estimated_remaining_s * slow)
        at_its_tier = (
            tier == job.nearest_tier and job.imbalance_slowdown > 1.0
        )  # all others would take such a place at once
        if not at_its_tier and params.others * job.gpus * holds * holds > job.typical_gpu_s * wait:
            return 0
        loses = job.estimated_remaining_s * (slow - job.slowdown[job.nearest_tier])
        return 1 if loses <= 0.0 or loses < params.share * wait else 0


def queue_or_turn(job: Any, now: float, first: float, second: float, patience: float, turn: float) -> float:
    """The queue; before all queues for a job that waited too long, until it has had its turn.

    `notes[3]` is the service at which the turn ends. Of those with a turn, who runs comes before who waits.
    """
    queue = rank(job, now, first, second, 0.0)
    if job.tier < 0 and now - job.queued_since_s >= patience - 1e-3:
        job.notes[3] = job.attained_gpu_s + turn * job.gpus
    if job.attained_gpu_s + 1e-3 < job.notes[3]:
        return -1.0 if job.tier >= 0 else -0.75
    return queue
