"""Shapes on a cluster: device types and tiers as numbers, where a shape can ever lie, and a step's time at each tier.

An alternative that the cluster can never hold is an `UnfitError`: a trace leaves it out, a submission is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from berth.cluster.catalogue import resolve
from berth.cluster.memo import per_cluster
from berth.cluster.model import Cluster
from berth.errors import InputError, SpecError, UnknownNameError
from berth.units import format_seconds
from berth.workload.shapes import EVERY, NEAR, Offer, Part, Shape, devices_text

Need = tuple[int, ...]  # devices of each type of the cluster


class UnfitError(InputError):
    """A shape that a cluster can never hold."""


@dataclass(frozen=True, slots=True)
class TiedPart:
    """A part that must lie within one group of a tier."""

    part: int  # index into the shape's parts
    tier: int
    need: Need


@dataclass(frozen=True, slots=True)
class BoundShape:
    """A shape in a cluster's numbers."""

    shape: Shape
    need: Need
    tied: tuple[TiedPart, ...]  # tightest tier first, then largest
    nearest_tier: int
    widest_tier: int
    step_s: tuple[float, ...]  # at each tier of the cluster; below the nearest, as there
    usd_per_hour: float | None

    @property
    def size(self) -> int:
        """Devices of all types."""
        return sum(self.need)


def bind(shape: Shape, cluster: Cluster, where: str | None = None) -> BoundShape:
    """The shape on a cluster; an error names what is missing, and `where` it was written."""
    tiers = [tier.name for tier in cluster.tiers]
    need = _need(shape.parts, cluster, where)
    tied = _tied(shape, cluster, tiers, where)
    nearest = nearest_tier_of(cluster, need, tuple((one.tier, one.need) for one in tied))
    if nearest is None:
        raise UnfitError(_why_unfit(shape, cluster, need, tied), where=where, hint="ask for fewer devices")
    widest = len(tiers) - 1 if shape.tier is None else _tier(shape.tier, tiers, where)
    if widest < nearest:
        raise UnfitError(
            f"no {tiers[widest]} ever holds {devices_text(shape.devices)}",
            where=where,
            hint=f"the nearest tier that does is {tiers[nearest]}",
        )
    steps = _steps(shape, tiers, nearest, widest, where)
    return BoundShape(shape, need, tied, nearest, widest, steps, _price(shape, cluster, need))


def bind_offer(offer: Offer, cluster: Cluster) -> tuple[BoundShape, ...]:
    """All alternatives of a job on a cluster, for a submission: each must fit, and one must meet the deadline."""
    bound = tuple(
        bind(shape, cluster, where or None)
        for shape, where in zip(
            offer.alternatives, offer.where or [""] * len(offer.alternatives), strict=True
        )
    )
    check_deadline(offer, bound)
    return bound


def bind_fitting(offer: Offer, cluster: Cluster) -> tuple[BoundShape, ...]:
    """The alternatives that the cluster can hold, for a trace; none: the job can never run."""
    found = []
    for shape, where in zip(offer.alternatives, offer.where or [""] * len(offer.alternatives), strict=True):
        try:
            found.append(bind(shape, cluster, where or None))
        except UnfitError:
            continue
    return tuple(found)


def check_deadline(offer: Offer, bound: Sequence[BoundShape]) -> None:
    """Refuse a deadline that no alternative meets, even at once and at its nearest placement."""
    if offer.deadline_s is None:
        return
    seconds = {one: run_s(offer, one, one.nearest_tier) for one in bound}
    fastest = min(seconds, key=lambda one: seconds[one])
    if seconds[fastest] > offer.deadline_s:
        raise SpecError(
            f"no alternative meets the deadline of {format_seconds(offer.deadline_s)}: the nearest, "
            f"{fastest.shape.name}, takes {format_seconds(seconds[fastest])}",
            where=offer.where[0] if offer.where else None,
            hint="allow more time, or add a faster alternative",
        )


def run_s(offer: Offer, bound: BoundShape, tier: int) -> float:
    """Seconds that the whole work of an offer takes in a shape at a tier, alone."""
    return offer.work.amount * bound.shape.unit_s(bound.step_s[tier], offer.work.unit)


def device_index(cluster: Cluster, name: str) -> int | None:
    """The number of a device type by its name or an alias, in any case; None: the cluster has none."""
    known = resolve(name)
    for index, kind in enumerate(cluster.device_types):
        if kind.name.lower() == name.lower() or (known is not None and kind.name == known):
            return index
    return None


def absent_types(shape: Shape, cluster: Cluster) -> tuple[str, ...]:
    """The device types that a shape asks for and the cluster lacks, as they are written."""
    return tuple(name for name in shape.devices if device_index(cluster, name) is None)


def _need(parts: Sequence[Part], cluster: Cluster, where: str | None) -> Need:
    need = [0] * len(cluster.device_types)
    for part in parts:
        for name, count in part.devices:
            index = device_index(cluster, name)
            if index is None:
                known = ", ".join(kind.name for kind in cluster.device_types)
                raise UnfitError(
                    f"part {part.name} asks for {name}, and {cluster.name} has none",
                    where=where,
                    hint=f"it has {known}",
                )
            need[index] += count
    return tuple(need)


def _tied(shape: Shape, cluster: Cluster, tiers: Sequence[str], where: str | None) -> tuple[TiedPart, ...]:
    found = []
    for number, part in enumerate(shape.parts):
        if part.tier is None:
            continue
        tier, need = _tier(part.tier, tiers, where), _need([part], cluster, where)
        if nearest_tier_of(cluster, need, ()) is None or not _group_holds(cluster, tier, need):
            raise UnfitError(
                f"no {part.tier} ever holds part {part.name}: {devices_text(dict(part.devices))}",
                where=where,
                hint="ask for fewer devices, or for a wider tier",
            )
        if tier < len(tiers) - 1:
            found.append(TiedPart(number, tier, need))
    return tuple(sorted(found, key=lambda one: (one.tier, -sum(one.need), one.part)))


def _tier(name: str, tiers: Sequence[str], where: str | None) -> int:
    if name not in tiers:
        raise UnknownNameError("tier", name, tiers, where=where)
    return list(tiers).index(name)


def _why_unfit(shape: Shape, cluster: Cluster, need: Need, tied: Sequence[TiedPart]) -> str:
    for index, count in enumerate(need):
        if count > cluster.count_of(index):
            kind = cluster.device_types[index].name
            return f"{shape.name} asks for {count} {kind}, and {cluster.name} has {cluster.count_of(index)}"
    names = ", ".join(shape.parts[one.part].name for one in tied)
    return f"{shape.name}: its parts {names} never fit beside each other within their tiers"


def _steps(
    shape: Shape, tiers: Sequence[str], nearest: int, widest: int, where: str | None
) -> tuple[float, ...]:
    """Seconds of a step at each tier; a wider tier is never faster."""
    written = dict(shape.step_s)
    for name in written:
        if name not in (NEAR, EVERY, *tiers):
            raise UnknownNameError("tier", name, [NEAR, *tiers], where=where)
    if NEAR in written:
        written.setdefault(tiers[nearest], written[NEAR])
    found: list[float] = []
    for tier in range(nearest, len(tiers)):
        step_s = written.get(tiers[tier], written.get(EVERY))
        if step_s is None and tier <= widest:
            raise SpecError(
                f"{shape.name}: step times have none for {tiers[tier]}",
                where=where,
                hint=f"write one for each of {', '.join(tiers[nearest : widest + 1])}; or one for all: step: 40ms"
                + (f"; or keep the shape nearer: tier: {tiers[tier - 1]}" if tier > nearest else ""),
            )
        found.append(max(step_s or 0.0, found[-1] if found else 0.0))
    return (found[0],) * nearest + tuple(found)


def _price(shape: Shape, cluster: Cluster, need: Need) -> float | None:
    if shape.usd_per_hour is not None:
        return shape.usd_per_hour
    total = 0.0
    for kind, count in zip(cluster.device_types, need, strict=True):
        if count and kind.usd_per_hour is None:
            return None
        total += count * (kind.usd_per_hour or 0.0)
    return total


# Where a shape can ever lie


@per_cluster
def nearest_tier_of(cluster: Cluster, need: Need, tied: tuple[tuple[int, Need], ...]) -> int | None:
    """The nearest tier with a group that holds all of a shape when it is empty; None: no group does."""
    for tier in range(len(cluster.tiers)):
        sizes = group_devices(cluster, tier)
        for group in np.flatnonzero((sizes >= need).all(axis=1)):
            if _holds_tied(cluster, tier, int(group), [one for one in tied if one[0] < tier]):
                return tier
    return None


@per_cluster
def group_devices(cluster: Cluster, tier: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Devices of each type in each group of a tier."""
    counts = np.zeros((len(cluster.group_names[tier]), len(cluster.device_types)), np.int64)
    for number, machine in enumerate(cluster.machines):
        for kind, count in machine.devices:
            counts[cluster.groups[tier][number], kind] += count
    return counts


def _group_holds(cluster: Cluster, tier: int, need: Need) -> bool:
    return bool((group_devices(cluster, tier) >= need).all(axis=1).any())


def _holds_tied(cluster: Cluster, tier: int, group: int, tied: Sequence[tuple[int, Need]]) -> bool:
    """Whether parts find groups of their tiers inside an empty group, side by side."""
    free = [group_devices(cluster, level).copy() for level in range(tier + 1)]
    parents = [
        dict(zip(cluster.groups[level].tolist(), cluster.groups[tier].tolist(), strict=True))
        for level in range(tier)
    ]

    def place(number: int) -> bool:
        if number == len(tied):
            return True
        level, need = tied[number]
        for one in range(len(free[level])):
            if parents[level].get(one) != group or not (free[level][one] >= need).all():
                continue
            above = [_ancestor(cluster, level, one, upper) for upper in range(level, tier + 1)]
            if not all((free[level + up][at] >= need).all() for up, at in enumerate(above)):
                continue
            for up, at in enumerate(above):
                free[level + up][at] -= need
            if place(number + 1):
                return True
            for up, at in enumerate(above):
                free[level + up][at] += need
        return False

    return place(0)


def _ancestor(cluster: Cluster, level: int, group: int, upper: int) -> int:
    machine = int(np.flatnonzero(cluster.groups[level] == group)[0])
    return int(cluster.groups[upper][machine])
