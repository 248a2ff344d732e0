"""Small policies that together take every path of the pass: for tests of the engine, and to learn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from berth.schedule.policy import Policy
from berth.schedule.rules import (
    Blocked,
    Defragment,
    Migrate,
    PreemptByGain,
    PreemptByOrder,
    Reserve,
    Rules,
    StaticOrder,
)
from berth.schedule.views import JobView


@dataclass(frozen=True)
class Exercise(Policy):
    """A policy whose rules are a constant of its class; by default, first come, first served."""

    RULES: ClassVar[Rules] = Rules(order=StaticOrder())

    def rules(self) -> Rules:
        """Return the rules of the class."""
        return self.RULES


class Strict(Exercise):
    """First come, first served; no job overtakes another."""

    RULES = Rules(order=StaticOrder(), blocked=Blocked.STOP)


class FitFirst(Exercise):
    """First come, first served; a job that fits may overtake."""


class NearestOnly(Exercise):
    """Waits as long as it takes for the nearest tier."""

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        """Never wider."""
        return job.nearest_tier


class Backfill(Exercise):
    """The first that does not fit has a place held; others pass if that does not delay it."""

    RULES = Rules(order=StaticOrder(), blocked=Blocked.BACKFILL)


class NearBackfill(NearestOnly):
    """The same, inside the nearest tier only."""

    RULES = Backfill.RULES


class LeastLeft(Exercise):
    """Least remaining work runs; at every event jobs that no longer belong there are evicted."""

    RULES = Rules(order=StaticOrder(), preempt=PreemptByOrder(monotone_order=True))

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """Least work left."""
        return job.estimated_remaining_s


@dataclass(frozen=True)
class Rounds(Exercise):
    """Least attained service runs; decided again every `period_s`, which must exceed what a restore takes."""

    period_s: float = 100.0

    def rules(self) -> Rules:
        """In rounds."""
        return Rules(order=StaticOrder(), preempt=PreemptByOrder(period_s=self.period_s))

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """Least attained."""
        return job.attained_gpu_s


@dataclass(frozen=True)
class TwoQueues(Exercise):
    """A job sinks into the second queue once it has attained `limit_gpu_s`."""

    limit_gpu_s: float = 500.0

    RULES = Rules(order=StaticOrder(), preempt=PreemptByOrder(monotone_order=True), wake_running=True)

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """First queue before second."""
        return 0.0 if job.attained_gpu_s < params.limit_gpu_s else 1.0

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        """When it sinks."""
        if job.attained_gpu_s >= params.limit_gpu_s or job.tier < 0:
            return math.inf
        return job.updated_s + (params.limit_gpu_s - job.attained_gpu_s) / job.gpus


class Ageing(Exercise):
    """Small jobs first, but waiting makes up for size: the order changes while nothing happens."""

    RULES = Rules(preempt=PreemptByOrder())

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        """Size less age."""
        return 100.0 * job.gpus - (now - job.arrival_s)


@dataclass(frozen=True)
class Delay(Exercise):
    """Holds out for each tier in turn, as long as its timer says; timers are learned from waits."""

    first_s: float = 300.0

    RULES = Rules(order=StaticOrder(), learn_timers=True)

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """The same for all to begin with."""
        return [self.first_s] * len(tiers)

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        """One tier wider with every timer that has run out."""
        tier, ends = job.nearest_tier, job.queued_since_s + job.delay_timer_s[job.nearest_tier]
        while tier < job.widest_tier and now >= ends:
            tier += 1
            ends += job.delay_timer_s[tier]
        return tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        """When the next timer runs out."""
        tier, ends = job.nearest_tier, job.queued_since_s + job.delay_timer_s[job.nearest_tier]
        while tier < job.widest_tier and now >= ends:
            tier += 1
            ends += job.delay_timer_s[tier]
        return ends if tier < job.widest_tier else math.inf

    @staticmethod
    def observe(stats: Any, wait: float, gave_up: int, now: float, params: Any) -> float:
        """Half old, half new."""
        return 0.5 * (stats.timer_s + wait)


class ByGain(NearestOnly):
    """Waits for the nearest tier, and has others moved where that gains more than it costs."""

    RULES = Rules(
        order=StaticOrder(), preempt=PreemptByGain(margin=1.0, min_run_s=30.0, eviction_interval_s=120.0)
    )

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        """Gangs gain, single devices do not."""
        return job.estimated_remaining_s if job.gpus > 1 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        """The larger the victim, the more expensive; a job about to finish stays."""
        return math.inf if victim.estimated_remaining_s < 20.0 else 10.0 * victim.gpus


class LookAhead(NearestOnly):
    """Nearest first; spreads what would idle, moves up, and holds a place for who has waited longest."""

    RULES = Rules(
        order=StaticOrder(),
        relax_locality=True,
        migrate=Migrate(gain=0.5),
        reserve=Reserve(after_s=200.0),
    )

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        """If the wait is long for what is left."""
        return 1 if wait > 0.2 * job.estimated_remaining_s else 0

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        """As if distance cost a tenth, so that it moves also where the network is free."""
        return float(job.estimated_remaining_s * (here - there + 0.1))


class Everything(LookAhead):
    """All of that, and others make room."""

    RULES = replace(LookAhead.RULES, preempt=ByGain.RULES.preempt)

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        """A tenth of what is left."""
        return 0.01 * victim.estimated_remaining_s


class StepAside(NearestOnly):
    """Waits for the nearest place, and has others step aside to make it."""

    RULES = Rules(
        order=StaticOrder(),
        defragment=Defragment(gain=0.5),
        reserve=Reserve(after_s=400.0),
        worst_fit=True,
    )


class EvenShapes(LookAhead):
    """Looks ahead, minds every uneven shape, and has others step aside, if need be farther away."""

    RULES = Rules(
        order=StaticOrder(),
        relax_locality=True,
        migrate=Migrate(gain=1.0),
        defragment=Defragment(gain=0.5, farther=True),
        imbalance_tolerance=0.0,
    )


class Impatient(Exercise):
    """Small jobs before large ones, and before all of them who has waited long."""

    RULES = Rules(order=StaticOrder(reorder_after_s=300.0), preempt=PreemptByOrder())

    class Job(JobView):
        """Remembers, while it runs, whether it had waited long."""

        waited_long: int

    @staticmethod
    def update(job: Job, now: float, params: Any) -> None:
        """Set while it waits."""
        if job.tier < 0:
            job.waited_long = 1 if now - job.queued_since_s >= 300.0 else 0

    @staticmethod
    def order(job: Job, now: float, params: Any) -> float:
        """By size."""
        return 0.0 if job.waited_long else float(job.gpus)


EXERCISES: dict[str, Policy] = {
    "strict": Strict(),
    "fit-first": FitFirst(),
    "nearest-only": NearestOnly(),
    "backfill": Backfill(),
    "near-backfill": NearBackfill(),
    "least-left": LeastLeft(),
    "rounds": Rounds(),
    "two-queues": TwoQueues(),
    "ageing": Ageing(),
    "delay": Delay(),
    "by-gain": ByGain(),
    "look-ahead": LookAhead(),
    "everything": Everything(),
    "step-aside": StepAside(),
    "even-shapes": EvenShapes(),
    "impatient": Impatient(),
}
