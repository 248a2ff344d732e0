"""What each alternative of a job would give: whether it fits now, and when the job would end in it (modelled)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.live.job import Job
from berth.live.state import ControllerState
from berth.units import format_wait
from berth.workload.binding import BoundShape, Need
from berth.workload.shapes import devices_text


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a waiting or running job, as of now."""

    name: str
    devices: str  # 4 A100-40 + 40 cpu-core
    size: int
    run_s: float  # for what is left of the work, at the nearest place
    tier_now: int | None  # the nearest tier with a place that is free now
    run_now_s: float | None  # for what is left of the work, there
    usd_per_hour: float | None

    @property
    def usd(self) -> float | None:
        """Dollars for what is left of the work, at the nearest place."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.run_s / 3600.0

    def row(self, tiers: Sequence[str]) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "name": self.name,
            "devices": self.devices,
            "run_s": self.run_s,
            "fits_now": None if self.tier_now is None else tiers[self.tier_now],
            "run_now_s": self.run_now_s,
            "usd_per_hour": self.usd_per_hour,
            "usd": self.usd,
        }


def alternatives_of(state: ControllerState, job: Job) -> list[Alternative]:
    """Return the alternatives of a job that the cluster can hold; none for a gang."""
    record, bound = state.world.jobs[job.row], state.shapes_of(job)
    if not record["shape_count"]:
        return []
    shapes = state.world.shapes[int(record["first_shape"]) :][: len(bound)]
    work = float(record["estimated_remaining_s"]) / float(state.world.shapes[record["shape"]]["unit_s"])
    found = []
    for shape, one in zip(shapes, bound, strict=True):
        near_s, tier = work * float(shape["unit_s"]), _tier_now(state, one)
        now_s = None if tier is None else near_s * float(shape["slowdown"][tier])
        text = devices_text(one.shape.devices)
        found.append(Alternative(one.shape.name, text, one.size, near_s, tier, now_s, one.usd_per_hour))
    return found


def _tier_now(state: ControllerState, one: BoundShape) -> int | None:
    """Return the nearest tier with a group that has enough free devices of every type."""
    tied = [(part.tier, part.need) for part in one.tied]
    for tier in range(one.nearest_tier, one.widest_tier + 1):
        inside = [(level, need) for level, need in tied if level < tier]
        if _is_free(state, tier, one.need) and all(_is_free(state, level, need) for level, need in inside):
            return tier
    return None


def _is_free(state: ControllerState, tier: int, need: Need) -> bool:
    free = state.world.groups["free"][tier][:, : len(need)]
    return bool((free >= np.array(need)).all(axis=1).any())


_NOW_ON = "could start now on"


def without_comparison(blocker: str) -> str:
    """Return a blocker without the sentence of `instead`."""
    return "; ".join(part for part in blocker.split("; ") if not part.startswith(_NOW_ON))


def instead(
    alternatives: Sequence[Alternative],
    waits_for: str | None,
    now: float,
    start: float | None,
    end: float | None,
) -> str | None:
    """`could start now on 16 T4, would end 3h later than waiting 40m for 4 A100-40`, or None if nothing fits now.

    `start` and `end` are those that are expected of the alternative that it waits for.
    """
    others = [one for one in alternatives if one.run_now_s is not None and one.name != waits_for]
    if not others:
        return None
    best = min(others, key=lambda one: one.run_now_s or 0.0)
    text = f"{_NOW_ON} {best.devices}"
    target = next((one for one in alternatives if one.name == waits_for), None)
    if start is None or end is None or target is None or best.run_now_s is None:
        return text
    later_s = now + best.run_now_s - end
    if later_s <= 0:
        return text
    waiting = f"waiting {format_wait(start - now)} for {target.devices}"
    return f"{text}, would end {format_wait(later_s)} later than {waiting}"
