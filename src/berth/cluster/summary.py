"""A summary of a cluster: identical machines and groups collapsed, totals, tiers.

Ten thousand identical machines are one line. Two groups are identical when they hold the same number of each
kind of part, whatever the order and the names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from berth.cluster.model import Cluster, DeviceType, Machine, Tier


@dataclass(frozen=True, slots=True)
class IdenticalParts:
    """`count` equal machines (`machine` says which) or equal groups (made of `parts`) at a level."""

    level: int
    count: int
    machines: int  # of all `count` together
    name: str  # of the first
    machine: Machine | None = None
    parts: tuple[IdenticalParts, ...] = ()


@dataclass(frozen=True, slots=True)
class TierSummary:
    """A tier, its groups and their up-links; the last tier has none."""

    tier: Tier
    groups: int
    devices: tuple[int, int]  # of the smallest and the largest group
    uplink_bytes_per_s: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class TypeSummary:
    """A device type and how many there are."""

    device: DeviceType
    count: int

    @property
    def memory_bytes(self) -> int | None:
        """Total over all devices of the type."""
        return None if self.device.memory_bytes is None else self.count * self.device.memory_bytes

    @property
    def usd_per_hour(self) -> float | None:
        """Total over all devices of the type."""
        return None if self.device.usd_per_hour is None else self.count * self.device.usd_per_hour


def summarise_types(cluster: Cluster) -> list[TypeSummary]:
    """Return the device types in the order of the cluster."""
    return [TypeSummary(device, cluster.count_of(index)) for index, device in enumerate(cluster.device_types)]


def summarise_tiers(cluster: Cluster) -> list[TierSummary]:
    """Return the tiers, nearest first."""
    result = []
    for level, tier in enumerate(cluster.tiers):
        sizes, uplinks = cluster.group_sizes(level), cluster.uplinks(level)
        span = (float(uplinks.min()), float(uplinks.max())) if len(uplinks) else None
        result.append(TierSummary(tier, len(sizes), (int(sizes.min()), int(sizes.max())), span))
    return result


def collapse(cluster: Cluster) -> tuple[IdenticalParts, ...]:
    """Return the parts of the cluster, identical ones collapsed, in order of first appearance."""
    kinds: list[IdenticalParts] = []
    kind_of = _machine_kinds(cluster, kinds)
    for level in range(1, len(cluster.tiers)):
        kind_of = _group_kinds(cluster, level, kind_of, kinds)
    if len(cluster.tiers) == 1:
        return (kinds[kind_of[0]],)
    return kinds[kind_of[0]].parts


def _machine_kinds(cluster: Cluster, kinds: list[IdenticalParts]) -> list[int]:
    known: dict[object, int] = {}
    kind_of = []
    for machine in cluster.machines:
        key = (
            machine.devices,
            machine.cores,
            machine.memory_bytes,
            machine.nic_bytes_per_s,
            machine.usd_per_hour,
        )
        if key not in known:
            known[key] = len(kinds)
            kinds.append(IdenticalParts(0, 1, 1, machine.name, machine))
        kind_of.append(known[key])
    return kind_of


def _group_kinds(cluster: Cluster, level: int, kind_of: list[int], kinds: list[IdenticalParts]) -> list[int]:
    """The kind of each group at `level`, given the kind of each group one level below."""
    _, some_machine = np.unique(cluster.groups[level - 1], return_index=True)
    parents = cluster.groups[level][some_machine]
    contents: list[Counter[int]] = [Counter() for _ in cluster.group_names[level]]
    first_names: list[dict[int, str]] = [{} for _ in cluster.group_names[level]]
    for name, kind, parent in zip(cluster.group_names[level - 1], kind_of, parents.tolist(), strict=True):
        contents[parent][kind] += 1
        first_names[parent].setdefault(kind, name)
    known: dict[object, int] = {}
    result = []
    for name, content, named in zip(cluster.group_names[level], contents, first_names, strict=True):
        key = tuple(sorted(content.items()))
        if key not in known:
            known[key] = len(kinds)
            parts = tuple(
                replace(kinds[kind], count=count, machines=kinds[kind].machines * count, name=named[kind])
                for kind, count in content.items()
            )
            kinds.append(IdenticalParts(level, 1, sum(part.machines for part in parts), name, parts=parts))
        result.append(known[key])
    return result
