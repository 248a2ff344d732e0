"""Spreads: the number of groups a job touches at each level, and a placement for each spread.

(2, 1, 1) is two machines of one rack; (4, 2, 1) four machines over two racks. Of all the ways to choose the
machines for a spread, `realise` takes the largest groups first and splits as evenly as they allow, so one
spread means one placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from berth.arrays import IntArray
from berth.cluster.gpus import usable_types
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.network.placement import Placement

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Spread:
    """One way of spreading a number of devices: groups touched at each level, 1 from its tier up."""

    devices: int
    groups: tuple[int, ...]

    @property
    def tier(self) -> int:
        """The nearest tier that holds all of it."""
        return self.groups.index(1)

    def words(self, cluster: Cluster) -> str:
        """`2 machines of one rack`, `16 machines in 2 racks`, `32 machines, 8 racks, 2 pods`."""
        names = [tier.name for tier in cluster.tiers]
        parts = [_counted(count, name) for count, name in zip(self.groups, names, strict=True) if count > 1]
        if self.tier == 0:
            return _counted(1, names[0])
        if self.tier == 1 and len(names) > 2:
            return f"{parts[0]} of one {names[1]}"
        return " in ".join(parts) if len(parts) == 2 else ", ".join(parts)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def spreads(cluster: Cluster, devices: int, usable: IntArray | None = None) -> list[Spread]:
    """Return the distinct ways of spreading `devices` devices, nearest first: packed, halved and wide at every tier.

    `usable` says how many devices of each machine may be taken (of one type, say); all of them by default.
    """
    sizes = cluster.sizes if usable is None else usable
    _check_demand(cluster, devices, sizes)
    found: dict[Spread, None] = {}
    for tier in range(len(cluster.tiers)):
        for way in _ways(cluster, tier, devices, sizes):
            spread = _first_that_fits(cluster, Spread(devices, way), sizes)
            if spread is not None:
                found[spread] = None
    return _thinned(sorted(found, key=lambda spread: spread.groups[::-1]))


def realise(cluster: Cluster, spread: Spread, usable: IntArray | None = None) -> Placement | None:
    """A placement with exactly this spread; None if the cluster has none with the largest groups first."""
    sizes = cluster.sizes if usable is None else usable
    if any(low < high for low, high in zip(spread.groups, spread.groups[1:], strict=False)):
        return None
    machines = _choose(cluster, spread.groups, sizes)
    if machines is None or len(machines) > spread.devices:
        return None
    counts = _even_split(spread.devices, sizes[machines])
    if counts is None:
        return None
    return Placement.of_counts(dict(zip(machines.tolist(), counts.tolist(), strict=True)))


def usable_devices(cluster: Cluster, device: str | None) -> IntArray:
    """Devices per machine: of one type, else all GPUs, or everything if there are no GPUs."""
    wanted = usable_types(cluster)
    if device is not None:
        wanted = tuple(index for index, kind in enumerate(cluster.device_types) if kind.name == device)
    counts = [sum(count for kind, count in machine.devices if kind in wanted) for machine in cluster.machines]
    return np.array(counts, dtype=np.int32)


def _check_demand(cluster: Cluster, devices: int, sizes: IntArray) -> None:
    if devices < 1:
        raise InputError(f"a job needs at least 1 GPU (given: {devices})")
    total = int(sizes.sum())
    if devices > total:
        raise InputError(
            f"{devices} GPUs are asked for, but cluster {cluster.name!r} has {total}",
            hint=f"ask for {total} or fewer, or name a larger cluster",
        )


def _ways(cluster: Cluster, tier: int, devices: int, sizes: IntArray) -> list[tuple[int, ...]]:
    """Spreads whose nearest common tier is `tier`: as few groups below as can be, then as many."""
    top = (1,) * (len(cluster.tiers) - tier)
    if tier == 0:
        return [top]
    few, many = [0] * tier, [0] * tier
    for level in range(tier - 1, -1, -1):
        above_few, above_many = (few[level + 1], many[level + 1]) if level < tier - 1 else (2, 2)
        few[level] = max(above_few, _fewest(cluster, level, devices, sizes))
        many[level] = max(above_many, min(devices, _most(cluster, level, tier, sizes)))
    packed, wide = (*few, *top), (*many, *top)
    halved = (max(few[0], min(devices, 2 * few[0])), *few[1:], *top)
    scattered = (many[0], *few[1:], *top)
    return [packed, halved, scattered, wide]


def _first_that_fits(cluster: Cluster, spread: Spread, sizes: IntArray) -> Spread | None:
    """The spread, or one over more machines if the fewest machines are not in one group."""
    low, high = spread.groups[0], min(spread.devices, len(cluster.machines))
    for machines in range(low, high + 1 if spread.tier else low + 1):
        wider = Spread(spread.devices, (machines, *spread.groups[1:]))
        if realise(cluster, wider, sizes) is not None:
            return wider
        if realise(cluster, Spread(machines, wider.groups), sizes) is None:
            return None  # not even one device on each of these machines: more machines can't help
    return None


def _fewest(cluster: Cluster, level: int, devices: int, sizes: IntArray) -> int:
    """Return the smallest number of groups of a level that hold `devices` devices."""
    held = np.cumsum(np.sort(np.bincount(cluster.groups[level], weights=sizes))[::-1])
    return int(np.searchsorted(held, devices)) + 1


def _most(cluster: Cluster, level: int, tier: int, sizes: IntArray) -> int:
    """The largest number of groups of a level, none empty, inside one group of a tier."""
    pairs = np.unique(cluster.groups[[tier, level]][:, sizes > 0], axis=1)
    return int(np.bincount(pairs[0]).max())


def _thinned(found: list[Spread]) -> list[Spread]:
    """At most eight rows: nearest and widest stay, the others evenly between."""
    if len(found) <= _SHOWN:
        return found
    kept = np.unique(np.linspace(0, len(found) - 1, _SHOWN).round().astype(int))
    return [found[index] for index in kept]


def _choose(cluster: Cluster, groups: Sequence[int], sizes: IntArray) -> IntArray | None:
    """Machines for a spread: from the top down the largest groups, as even a number below each as can be."""
    chosen = np.zeros(1, dtype=np.int64)
    for level in range(len(groups) - 2, -1, -1):
        children = _children(cluster, level, sizes)
        available = np.array([len(children[group]) for group in chosen])
        per_group = _even_split(groups[level], available)
        if per_group is None or per_group.min() < 1:
            return None
        chosen = np.array(
            [child for group, n in zip(chosen, per_group, strict=True) for child in children[group][:n]]
        )
    return chosen.astype(np.int32)


def _children(cluster: Cluster, level: int, sizes: IntArray) -> list[list[int]]:
    """Of each group one level up, its groups at `level` that have devices, largest first."""
    held = np.bincount(cluster.groups[level], weights=sizes)
    pairs = np.unique(cluster.groups[[level + 1, level]][:, sizes > 0], axis=1).T
    children: list[list[int]] = [[] for _ in cluster.group_names[level + 1]]
    for parent, child in pairs.tolist():
        children[parent].append(child)
    return [sorted(below, key=lambda child: (-held[child], child)) for below in children]


def _even_split(total: int, capacity: IntArray) -> IntArray | None:
    """Split `total` as evenly as the capacities allow; None if it does not fit."""
    if total > int(capacity.sum()):
        return None
    result = np.zeros(len(capacity), dtype=np.int32)
    for position, place in enumerate(np.argsort(capacity, kind="stable")):
        # The smallest first: what does not fit there is shared by those after it.
        result[place] = min(int(capacity[place]), (total - int(result.sum())) // (len(capacity) - position))
    return result
