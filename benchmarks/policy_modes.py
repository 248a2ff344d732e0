"""The fixed modes that berth's own policy is measured against, at one and the same job order.

Each holds out for near places by timers: not at all, for ever, for fixed times, or for times learned from
the waits that jobs had lately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from berth.schedule.policies.berth import FIRST_LIMIT_GPU_S, SECOND_LIMIT_GPU_S, Rank
from berth.schedule.policy import Policy, Preempt, Rules

_DAY_S = 86400.0


@dataclass(frozen=True)
class Mode(Policy):
    """Delay scheduling by timers; `learned` 1: they follow what jobs met."""

    machine_s: float = 0.0
    rack_s: float = 0.0
    learned: float = 0.0
    las: float = 0.0  # 1: by least attained service
    first_limit: float = FIRST_LIMIT_GPU_S
    second_limit: float = SECOND_LIMIT_GPU_S

    def rules(self) -> Rules:
        """Preemption only where the order asks for it."""
        las = self.las > 0
        return Rules(
            steady=True,
            wakes=las,
            preempt=Preempt.BY_ORDER if las else Preempt.NEVER,
            learns=bool(self.learned),
        )

    def timers(self, tiers: Sequence[str]) -> Sequence[float]:
        """The nearest tier's, and one for every farther tier."""
        return [self.machine_s, *[self.rack_s] * (len(tiers) - 1)]

    @staticmethod
    def order(job: Any, now: float, my: Any) -> Any:
        """As in berth's own policy."""
        if my.las == 0:
            return job.arrival
        if job.attained < my.first_limit:
            return 0.0
        return 1.0 if job.attained < my.second_limit else 2.0

    @staticmethod
    def reach(job: Any, now: float, my: Any) -> Any:
        """One tier wider after each timer."""
        tier, left = job.floor, now - job.since
        while tier < job.widest and left >= job.timer[tier]:
            left -= job.timer[tier]
            tier += 1
        return tier

    @staticmethod
    def wake(job: Any, now: float, my: Any) -> Any:
        """The next timer of a job that waits; the next limit of one that runs."""
        if job.head >= 0:
            if my.las == 0:
                return math.inf
            limit = my.first_limit if job.attained < my.first_limit else my.second_limit
            at = job.touched + (limit - job.attained) / job.gpus
            return at if at > now else math.inf
        at, tier = job.since, job.floor
        while tier < job.widest:
            at += job.timer[tier]
            if at > now:
                return at
            tier += 1
        return math.inf

    @staticmethod
    def observe(offer: Any, wait: float, gave_up: int, now: float, my: Any) -> Any:
        """Mean + 1 standard deviation of a day's waits, at most a day; as it was below five of them."""
        count, total, squares = 0, 0.0, 0.0
        for i in range(offer.count):
            if now - offer.at[i] <= 86400.0:
                count += 1
                total += offer.wait[i]
                squares += offer.wait[i] ** 2
        if count < 5:
            return offer.timer
        mean = total / count
        return min(mean + math.sqrt(max(0.0, squares / count - mean * mean)), 86400.0)


def modes(rank: Rank) -> dict[str, Policy]:
    """The modes by name."""
    las = float(rank == Rank.LAS)
    return {
        "no-wait": Mode(las=las),
        "full": Mode(machine_s=math.inf, rack_s=math.inf, las=las),
        "manual": Mode(machine_s=_DAY_S / 2, rack_s=_DAY_S, las=las),
        "tuned": Mode(machine_s=_DAY_S / 2, rack_s=_DAY_S, learned=1.0, las=las),
    }
