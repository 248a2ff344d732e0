"""Delay scheduling after Dally (arXiv 2401.16492): a job waits a bounded time for a nearer place.

A job holds out for its nearest tier until that tier's timer is over, then for the next, and so on. The clock
starts at its arrival or last eviction, and a refused offer never resets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from berth.schedule import JobView, Policy, PreemptByGain, PreemptByOrder, Rules, StaticOrder, WaitStatsView
from berth.schedule.policies.constant import choice, duration, number
from berth.schedule.policies.las import LasJob, check_queues, place_in_line, rank, sinks_at, update_queue
from berth.schedule.policies.waits import Censored, timer_from
from berth.schedule.records import EstimateKind

Mode = IntEnum("Mode", ["NO_WAIT", "FULL", "MANUAL", "TUNED"])
Order = IntEnum("Order", ["EFF", "FIFO", "LAS"])  # most hurt by the network; arrival; least attained service


@dataclass(frozen=True)
class Dally(Policy):
    """Waits for near places by timers; network-sensitive jobs go first and may evict others.

    Four modes: `no-wait` takes anything at once, `full` never spreads wider than it must, `manual` has fixed
    timers, `tuned` learns them from what jobs of the same size lately waited at each tier. So far
    the learned ones did worse than the fixed ones; docs/design/policies.md has figures.
    """

    Job = LasJob
    mode: Mode = choice(Mode.MANUAL, "where the timers come from")
    machine: float = duration("12h", "how long to wait for one machine (the nearest tier)")
    rack: float = duration("24h", "then for one rack (the next tier)")
    beyond: float = duration("24h", "then for each wider tier")
    order_by: Order = choice(Order.EFF, "which job goes first", name="order")
    preempt: bool = choice(True, "whether running jobs are moved: by gain (eff) or by queue (las)")
    cap: bool = choice(False, "never wait longer than waiting can save")
    margin: float = number(1.2, "a gain must exceed this many times the victims' cost")
    min_run: float = duration("10m", "no job is evicted sooner after its start, or after restoring")
    budget: float = duration("1h", "nor again within this time")
    nearly_done: float = duration("10m", "nor with less time left than this")
    window: float = duration("24h", "tuned: waits older than this are forgotten")
    deviations: float = number(1, "tuned: standard deviations above the mean wait")
    longest: float = duration("24h", "tuned: no timer is longer")
    samples: float = number(5, "tuned: with fewer waits the fixed timers apply")
    censored: Censored = choice(Censored.COUNT, "tuned: how a wait that was given up is counted")
    first: float = number(3250, "las: GPU-seconds at which a job leaves the first queue")
    second: float = number(7200, "las: GPU-seconds at which it leaves the second")

    def __post_init__(self) -> None:
        check_queues(self.first, self.second)

    def rules(self) -> Rules:
        """Whether others are moved, and by what right."""
        by_gain = PreemptByGain(
            self.margin, self.min_run, self.budget, victims_by_order=True, cost_by_order=True
        )
        by = {Order.EFF: by_gain, Order.FIFO: None, Order.LAS: PreemptByOrder()}[self.order_by]
        return Rules(
            order=StaticOrder(),
            preempt=by if self.preempt else None,
            wake_running=self.order_by == Order.LAS,
            learn_timers=self.mode == Mode.TUNED,
        )

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """One for each tier; the widest needs none."""
        if self.mode in (Mode.NO_WAIT, Mode.FULL):
            return [0.0 if self.mode == Mode.NO_WAIT else math.inf] * len(tiers)
        return [self.machine, self.rack, *[self.beyond] * len(tiers)][: len(tiers)]

    @staticmethod
    def update(job: LasJob, now: float, params: Dally) -> None:
        """The queue of what it has attained."""
        if params.order_by == Order.LAS:
            update_queue(job, now, params.first, params.second, 0.0)

    @staticmethod
    def order(job: LasJob, now: float, params: Dally) -> float:
        """Most hurt by the network first, or as asked."""
        if params.order_by == Order.LAS:
            return rank(job, now)
        return efficiency(job) if params.order_by == Order.EFF else job.arrival_s

    @staticmethod
    def tie_break(job: LasJob, now: float, params: Dally) -> float:
        """Among equally hurt ones, least left."""
        if params.order_by == Order.LAS:
            return place_in_line(job)
        return job.estimated_remaining_s if params.order_by == Order.EFF else 0.0

    @staticmethod
    def allowed_tier(job: JobView, now: float, params: Dally) -> int:
        """One tier wider after each timer."""
        return held_out(job, now, params.cap)[0]

    @staticmethod
    def wake(job: LasJob, now: float, params: Dally) -> float:
        """When the next timer is over; for one that runs, when it sinks a queue."""
        if job.tier >= 0:
            las = params.order_by == Order.LAS
            return sinks_at(job, now, params.first, params.second) if las else math.inf
        return held_out(job, now, params.cap)[1]

    @staticmethod
    def cost(victim: JobView, job: JobView, now: float, params: Dally) -> float:
        """What it loses one tier wider; never a job slowed as much, nor one about to finish."""
        if victim.estimated_remaining_s < params.nearly_done or efficiency(victim) <= efficiency(job):
            return math.inf
        wider = victim.slowdown[min(victim.widest_tier, victim.nearest_tier + 1)]
        return victim.estimated_remaining_s * max(0.0, wider - victim.slowdown[victim.tier])

    @staticmethod
    def observe(stats: WaitStatsView, wait: float, gave_up: int, now: float, params: Dally) -> float:
        """Mean and deviations of the waits in the window."""
        return timer_from(
            stats, now - params.window, params.samples, params.deviations, params.longest, params.censored
        )


def efficiency(job: JobView) -> float:
    """Share of its run time that was computation: 1 is unhurt. Before its first run, at the widest tier."""
    if job.ran_s <= 0.0:
        return job.compute_share / job.slowdown[job.widest_tier]
    if job.estimate_kind != EstimateKind.TRACKED:
        return job.compute_share * job.done_s / job.ran_s
    return job.compute_share * (job.work_s - job.estimated_remaining_s / job.estimate_error) / job.ran_s


def held_out(job: JobView, now: float, cap: bool) -> tuple[int, float]:
    """(the tier it would accept by now, when it will accept a wider one)."""
    due = job.queued_since_s
    for tier in range(job.nearest_tier, job.widest_tier):
        timer = job.delay_timer_s[tier]
        if cap:
            slower = max(0.0, job.slowdown[tier + 1] - job.slowdown[tier])
            timer = min(timer, job.estimated_remaining_s * slower)
        due += timer
        if now < due:
            return tier, due
    return job.widest_tier, math.inf
