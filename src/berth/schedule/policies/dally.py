"""Delay scheduling after Dally (arXiv 2401.16492): a job waits a bounded time for a nearer place.

A job holds out for its nearest tier until that tier's timer is over, then for the next, and so on. The clock
starts at its arrival or last eviction, and a refused offer never resets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from berth.schedule.policies.constant import duration, number, word
from berth.schedule.policies.las import place_in_line, rank, sinks_at
from berth.schedule.policies.waits import timer_from
from berth.schedule.policy import Policy, Preempt, Rules

_EFF, _FIFO, _LAS = 0, 1, 2  # places in the list of words of `order`


@dataclass(frozen=True)
class Dally(Policy):
    """Waits for near places by timers; network-sensitive jobs go first and may evict others.

    Four modes: `no-wait` takes anything at once, `full` never spreads wider than it must, `manual` has fixed
    timers, `tuned` learns them from what jobs of the same size lately waited at each tier. So far
    the learned ones did worse than the fixed ones; docs/design/policies.md has figures.
    """

    mode: str = word("manual", "no-wait full manual tuned", "where the timers come from")
    machine: float = duration("12h", "how long to wait for one machine (the nearest tier)")
    rack: float = duration("24h", "then for one rack (the next tier)")
    beyond: float = duration("24h", "then for each wider tier")
    order_by: str = word("eff", "eff fifo las", "which job goes first", name="order")
    preempt: str = word("yes", "no yes", "whether running jobs are moved: by gain (eff) or by queue (las)")
    cap: str = word("no", "no yes", "never wait longer than waiting can save")
    margin: float = number(1.2, "a gain must exceed this many times the victims' cost")
    min_run: float = duration("10m", "no job is evicted sooner after its start, or after restoring")
    budget: float = duration("1h", "nor again within this time")
    nearly_done: float = duration("10m", "nor with less time left than this")
    window: float = duration("24h", "tuned: waits older than this are forgotten")
    deviations: float = number(1, "tuned: standard deviations above the mean wait")
    longest: float = duration("24h", "tuned: no timer is longer")
    samples: float = number(5, "tuned: with fewer waits the fixed timers apply")
    censored: str = word(
        "count", "ignore count kaplan-meier", "tuned: how a wait that was given up is counted"
    )
    first: float = number(3250, "las: GPU-seconds at which a job leaves the first queue")
    second: float = number(7200, "las: GPU-seconds at which it leaves the second")

    def rules(self) -> Rules:
        """Whether others are moved, and by what right."""
        by = {"eff": Preempt.BY_GAIN, "fifo": Preempt.NEVER, "las": Preempt.BY_ORDER}[self.order_by]
        return Rules(
            preempt=by if self.preempt == "yes" else Preempt.NEVER,
            static_order=True,
            wake_running=self.order_by == "las",
            min_run_s=self.min_run,
            eviction_interval_s=self.budget,
            gain_margin=self.margin,
            victims_by_order=True,
            learn_timers=self.mode == "tuned",
        )

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """One for each tier; the widest needs none."""
        if self.mode in ("no-wait", "full"):
            return [0.0 if self.mode == "no-wait" else math.inf] * len(tiers)
        return [self.machine, self.rack, *[self.beyond] * len(tiers)][: len(tiers)]

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """Most hurt by the network first, or as asked."""
        if params.order_by == _LAS:
            return rank(job, now, params.first, params.second, 0.0)
        return efficiency(job) if params.order_by == _EFF else job.arrival_s

    @staticmethod
    def tie_break(job: Any, now: float, params: Any) -> float:
        """Among equally hurt ones, least left."""
        if params.order_by == _LAS:
            return place_in_line(job)
        return job.estimated_remaining_s if params.order_by == _EFF else 0.0

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        """One tier wider after each timer."""
        return held_out(job, now, params.cap)[0]

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        """When the next timer is over; for one that runs, when it sinks a queue."""
        if job.tier >= 0:
            return sinks_at(job, now, params.first, params.second) if params.order_by == _LAS else math.inf
        return held_out(job, now, params.cap)[1]

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        """What it loses one tier wider; never a job slowed as much, nor one about to finish."""
        if victim.estimated_remaining_s < params.nearly_done or efficiency(victim) <= efficiency(job):
            return math.inf
        wider = victim.slowdown[min(victim.widest_tier, victim.nearest_tier + 1)]
        return victim.estimated_remaining_s * max(0.0, wider - victim.slowdown[victim.tier])

    @staticmethod
    def observe(stats: Any, wait: float, gave_up: int, now: float, params: Any) -> float:
        """Mean and deviations of the waits in the window."""
        return timer_from(
            stats, now - params.window, params.samples, params.deviations, params.longest, params.censored
        )


def efficiency(job: Any) -> float:
    """Share of its run time that was computation: 1 is unhurt. Before its first run, at the widest tier."""
    if job.ran_s <= 0.0:
        return job.compute_share / job.slowdown[job.widest_tier]
    return job.compute_share * (job.work_s - job.estimated_remaining_s / job.estimate_error) / job.ran_s


def held_out(job: Any, now: float, cap: float) -> tuple[int, float]:
    """(the tier it would accept by now, when it will accept a wider one)."""
    due = job.queued_since_s
    for tier in range(job.nearest_tier, job.widest_tier):
        timer = job.delay_timer_s[tier]
        if cap:
            timer = min(
                timer, job.estimated_remaining_s * max(0.0, job.slowdown[tier + 1] - job.slowdown[tier])
            )
        due += timer
        if now < due:
            return tier, due
    return job.widest_tier, math.inf
