"""berth's own policy, without timers: how long a wait will be is computed from what runs now.

**Order.** By default the job goes first that is expected to cost least GPU time per completion (`index_s` x GPUs): its
remaining time where that is known, else an index over the durations of jobs like it that have ended, or over a wide
prior (schedule/estimates.py). A job that goes first takes the place of later ones that can be preempted. A running
job is ahead by what restoring it would cost. Waiting counts: after `aging` a job counts as e times smaller, so small
ones do not pass a large one forever. The other orders are the user's choice; the rule is about places:

1. Every job, in order, that fits at the nearest tier that can ever hold it starts there. A gang on
   several machines is spread evenly over them where that matters to it: see schedule/balance.py.
2. For the first few that do not fit, though enough devices are free: running jobs move, each to a place no
   farther than its own, if the wait that this spares is worth `defragment` times what it costs them. The
   wait is the look-ahead wait: until enough of what runs inside one group of that tier has ended. Except at FIFO
   and LAS order they may also go farther, at the cost of what that slows them: jobs that
   distance does not slow make way for those that it does.
3. Over devices that would idle now a job may spread if what the distance costs it, remaining work times the
   extra slow-down there, is below `share` of its look-ahead wait. A job that can't be moved later reckons with
   twice that slow-down and `risk`: other jobs will use the same links. If its duration is learned or unknown, it
   spreads only if no distance slows it by more than 1 %: else it might be slow for weeks.
4. Neither 2 nor 3 for a job that puts off too many others: on its devices gpus x w / usual usual jobs could
   run in w seconds, each put off by up to w. w is how long it would run there, at most its look-ahead wait
   (after that it would run anyway); `usual` is the geometric mean of the device-seconds of recent jobs. A
   gang that finds its nearest tier, but unevenly, weighs only its own loss against its own wait. At the default order
   that is for jobs that can't be preempted: others can be put off again.
5. A spread job moves to a nearer or more even place that has opened if that saves `move_up` times what
   moving costs.
6. Every wait is bounded. The job that has waited longest (at the default order: the first in order), once
   over `hold_after`, has the soonest free group reserved for it, if that comes free within `hold_share` of its wait
   so far; meanwhile only jobs that end in time may use it. At LAS order lower queues make way at once, and a job that
   has waited `patience` goes before all others, for a run of `turn`.

7. On a cluster with several device types, at the default order and where all jobs have one priority, a gang takes the
   type on which it would end first, the wait for it and what others lose included (schedule/shape_choice.py), and
   moves to a faster one as it moves to a nearer place. That replaces rules 1 to 4.

Remaining times need not be exact: an error makes a job wait, run or spread when it should not have, never wait
forever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, auto

from berth.reproducible import log
from berth.schedule import Defragment, JobView, Migrate, Policy, PreemptByOrder, Reserve, Rules, StaticOrder
from berth.schedule.policies.constant import choice, duration, number
from berth.schedule.policies.las import LasJob, check_queues, place_in_line, rank, sinks_at, update_queue
from berth.schedule.records import EstimateKind


class Rank(IntEnum):
    """Which job goes first."""

    SERVICE = auto()  # least expected GPU time per completion; later jobs make way
    NETWORK = auto()  # first come, with a head start for jobs that distance slows
    FIFO = auto()  # first come; no job is evicted
    LAS = auto()  # least GPU time so far, in three queues; lower queues make way (2D-LAS)


@dataclass(frozen=True)
class Berth(Policy):
    """Least expected service first, at a near place where waiting for one is cheaper; nothing to choose."""

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
    types: bool = choice(True, "service: on a cluster with several device types gangs choose among them")
    shape: float = number(0.1, "slowdown by an uneven spread over machines that is tolerated")
    head_start: float = duration(
        "1h", "network: of a job that distance would stop, over one that it does not slow"
    )
    hold_after: float = duration(
        "4d", "service, network, fifo: a job that has waited this long has a place reserved for it"
    )
    hold_share: float = number(0.25, "and that place comes free within this share of its wait so far")
    patience: float = duration("2d", "las: a job that has waited this long goes before all others")
    turn: float = duration("1h", "las: and stays so until it has run for this time")
    first: float = number(3250, "las: GPU-seconds at which a job leaves the first queue")
    second: float = number(7200, "las: GPU-seconds at which it leaves the second")
    aging: float = duration("7d", "service: a job that has waited this long counts as e times smaller")
    keep: float = number(
        1, "service: a running job counts as this many times smaller, so it is evicted less often"
    )
    min_run: float = duration(
        "0s", "service: a job is not evicted sooner after its start, or after restoring"
    )
    risk: float = number(
        0.2, "service: slowdown to reckon with for a job that can't be moved once it is spread"
    )

    def __post_init__(self) -> None:
        check_queues(self.first, self.second)

    def rules(self) -> Rules:
        """Step aside, look ahead, move up, bounded waits; preemption only where the order asks for it."""
        las = self.order_by == Rank.LAS
        if self.order_by == Rank.SERVICE:
            return Rules(
                order=StaticOrder(),
                preempt=PreemptByOrder(monotone_order=True, min_run_s=self.min_run),
                wake_running=True,
                keeps_state=False,
                relax_locality=self.share > 0,
                choose_types=self.types and self.share > 0,
                migrate=Migrate(gain=self.move_up),
                defragment=Defragment(gain=self.defragment, farther=True),
                imbalance_tolerance=self.shape,
                reserve=Reserve(after_s=self.hold_after, share=self.hold_share, in_order=True),
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
        """Least service, aged; first come, with or without head start; or the queue, after jobs that have a turn."""
        if params.order_by == Rank.SERVICE:
            kept = log(max(1.0, params.keep)) if job.tier >= 0 else 0.0
            return log(expected_service_gpu_s(job)) + job.arrival_s / params.aging - kept
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
        loses = job.estimated_remaining_s * (slow - job.slowdown[job.nearest_tier])
        # all other policies would take a place at its nearest tier at once
        at_its_tier = tier == job.nearest_tier and job.imbalance_slowdown > 1.0
        by_service = params.order_by == Rank.SERVICE
        if by_service and not job.movable and tier > job.nearest_tier:
            slowest = job.slowdown[job.widest_tier] * job.imbalance_slowdown
            known = job.estimate_kind == EstimateKind.TRACKED
            if not known and slowest > 1.01 * job.slowdown[job.nearest_tier]:
                return 0
            loses = job.estimated_remaining_s * (2.0 * (slow - job.slowdown[job.nearest_tier]) + params.risk)
        if not at_its_tier and not (by_service and job.preemptible):
            holds = min(wait, job.estimated_remaining_s * slow)
            if params.others * job.gpus * holds * holds > job.typical_gpu_s * wait:
                return 0
        return 1 if loses <= 0.0 or loses < params.share * wait else 0


def expected_service_gpu_s(job: JobView) -> float:
    """GPU-seconds per completion that a job is expected to cost from now on, one or more.

    A running job need not be restored, so it is that much ahead. Jobs that can't be preempted and of which nothing is
    known count alike, whatever their size: small ones first would only let large ones starve.
    """
    left_s = job.index_s
    if job.tier >= 0:
        left_s -= job.restore_s
    if job.estimate_kind == EstimateKind.NONE and not job.preemptible:
        return max(1.0, left_s)
    return max(1.0, left_s) * job.gpus
