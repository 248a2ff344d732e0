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
from enum import IntEnum, auto

from berth.schedule import Defragment, JobView, Migrate, Policy, PreemptByOrder, Reserve, Rules, StaticOrder
from berth.schedule.policies.constant import choice, duration, number
from berth.schedule.policies.las import LasJob, place_in_line, rank, sinks_at, update_queue


class Rank(IntEnum):
    """Which job goes first."""

    SERVICE = auto()  # least expected GPU time per completion; later jobs make way
    NETWORK = auto()  # first come, with a head start for jobs that distance slows
    FIFO = auto()  # first come; no job is evicted
    LAS = auto()  # least GPU time so far, in three queues; lower queues make way (2D-LAS)


@dataclass(frozen=True)
class Berth(Policy):
    """Waits for a near place while that is cheaper, by the expected ends of running jobs."""

    class Job(LasJob):
        """At LAS order a job that has waited too long has a turn before all others."""

        turn_ends_gpu_s: float  # the service at which that turn ends

    order_by: Rank = choice(Rank.SERVICE, "which job goes first", name="order")
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
    credit: float = number(1, "x")
    stay: float = number(1, "x")
    aging: float = number(0, "x")
    aging_log: bool = choice(True, "x")
        farther: bool = choice(True, "x")
    in_order: bool = choice(True, "x")
    power: float = number(0, "x")
    others_moving: float = number(0, "x")
    share_fixed: float = number(0.5, "x")
    share_blind: float = number(0.5, "x")
    slow_fixed: float = number(1.1, "x")

    def rules(self) -> Rules:
        """Step aside, look ahead, move up, bounded waits; preemption only where the order asks for it."""
        las = self.order_by == Rank.LAS
        if self.order_by == Rank.SERVICE:
            return Rules(
                order=StaticOrder(),
                preempt=PreemptByOrder(monotone_order=True),
                wake_running=True,
                relax_locality=self.share > 0,
                migrate=Migrate(gain=self.move_up),
                defragment=Defragment(gain=self.defragment, farther=self.farther),
                imbalance_tolerance=self.shape,
                reserve=Reserve(after_s=self.hold_after, share=self.hold_share, in_order=self.in_order),
            )
        return Rules(
            order=StaticOrder(reorder_after_s=self.patience if las else math.inf),
            preempt=PreemptByOrder() if las else None,
            wake_running=las,
            relax_locality=self.share > 0,
            migrate=Migrate(gain=self.move_up),
            defragment=Defragment(gain=self.defragment, farther=self.order_by == Rank.NETWORK),
            imbalance_tolerance=self.shape,
            reserve=None if las else Reserve(after_s=self.hold_after, share=self.hold_share),
        )

    @staticmethod
    def update(job: Job, now: float, params: Berth) -> None:
        """At LAS order: the queue of what it has attained, or a turn for a job that waited too long."""
        if params.order_by == Rank.LAS:
            update_queue(job, now, params.first, params.second, 0.0)
            if job.tier < 0 and now - job.queued_since_s >= params.patience - 1e-3:
                job.turn_ends_gpu_s = job.attained_gpu_s + params.turn * job.gpus

    @staticmethod
    def order(job: Job, now: float, params: Berth) -> float:
        """First come, with or without head start; or the queue, before which are jobs that have a turn."""
        if params.order_by == Rank.SERVICE:
            left = job.index_s
            if job.tier >= 0:
                left = max(0.0, left - params.credit * job.restore_s) / params.stay
            power = params.power if job.estimate_kind == 2 and not job.preemptible else 1.0
            key = max(1.0, left) * job.gpus**power
            if params.aging == 0.0:
                return key
            if params.aging_log:
                return math.log(key) + job.arrival_s / params.aging
            return key + job.arrival_s * params.aging
        if params.order_by == Rank.LAS:
            if job.attained_gpu_s + 1e-3 < job.turn_ends_gpu_s:
                return -1.0 if job.tier >= 0 else -0.75
            return rank(job, now)
        if params.order_by == Rank.NETWORK:
            return job.arrival_s - params.head_start * (1.0 - 1.0 / job.slowdown[job.widest_tier])
        return job.arrival_s

    @staticmethod
    def tie_break(job: Job, now: float, params: Berth) -> float:
        """Inside a queue: running jobs, then waiting ones as they joined its line."""
        return place_in_line(job) if params.order_by == Rank.LAS else 0.0

    @staticmethod
    def wake(job: Job, now: float, params: Berth) -> float:
        """When a running job sinks to the next queue or its turn ends; waiting ones keep theirs."""
        if params.order_by == Rank.SERVICE:
            return job.index_until_s if job.tier >= 0 else math.inf
        if job.tier < 0 or params.order_by != Rank.LAS:
            return math.inf
        at = sinks_at(job, now, params.first, params.second)
        if job.attained_gpu_s < job.turn_ends_gpu_s:
            at = min(at, now + (job.turn_ends_gpu_s - job.attained_gpu_s) / job.gpus)
        return at

    @staticmethod
    def allowed_tier(job: JobView, now: float, params: Berth) -> int:
        """In the first place only the nearest tier."""
        return job.nearest_tier

    @staticmethod
    def spread(job: JobView, tier: int, wait: float, now: float, params: Berth) -> int:
        """1 if it should start at `tier` now rather than wait, for its own sake and for that of others."""
        slow = job.slowdown[tier] * job.imbalance_slowdown
        holds = min(wait, job.estimated_remaining_s * slow)
        # all other policies would take a place at its nearest tier at once
        at_its_tier = tier == job.nearest_tier and job.imbalance_slowdown > 1.0
        others, share = params.others, params.share
        if params.order_by == Rank.SERVICE and job.preemptible:
            others = params.others_moving
        elif params.order_by == Rank.SERVICE:
            share = params.share_fixed if job.estimate_kind == 0 else params.share_blind
            if slow > params.slow_fixed * job.slowdown[job.nearest_tier]:
                return 0
        if not at_its_tier and others * job.gpus * holds * holds > job.typical_gpu_s * wait:
            return 0
        loses = job.estimated_remaining_s * (slow - job.slowdown[job.nearest_tier])
        return 1 if loses <= 0.0 or loses < share * wait else 0
