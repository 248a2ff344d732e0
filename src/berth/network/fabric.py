"""The cluster's tiers and links as flat arrays, for formulas and kernels.

Two rates of one device at a tier are kept apart. `peak` is its rate on an idle network. `busy` is
its rate while every device sends: bandwidth / oversubscription. Sharing works with peak rates and link
capacities; a placement evaluated alone, with unknown neighbours, uses busy rates.

Congestion (1 = none) divides every bandwidth above the machine, network cards included: it stands for load
that berth can't see.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.units import MAX_CONGESTION


class FabricArrays(NamedTuple):
    """A fabric for compiled code. A far path runs through the nearer tiers, so rates never rise."""

    peak: FloatArray  # bytes/s of one device at each tier, idle network
    busy: FloatArray  # bytes/s of one device at each tier, all devices sending
    latency_s: FloatArray  # of each tier
    oversubscription: FloatArray  # the largest on the way up to each tier; 1 inside the machine
    nic: FloatArray  # bytes/s of all devices of a machine together; inf: each has its own link
    groups: IntArray  # [level, machine] -> group
    rank: IntArray  # position of each machine when the tree is walked depth first
    links: IntArray  # [level, machine] -> the up-link of the machine's group at that level; the top has none
    capacity: FloatArray  # bytes/s of each up-link


@dataclass(frozen=True, eq=False)
class Fabric:
    """The network of a cluster."""

    cluster: Cluster
    congestion: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.congestion <= MAX_CONGESTION:
            raise InputError(
                f"congestion must be 1 or more, at most {MAX_CONGESTION:,.0f} (given: {self.congestion:g})",
                hint="1 is an idle network; 5 leaves each device a fifth of its bandwidth above the machine",
            )

    @property
    def tiers(self) -> int:
        """Number of tiers."""
        return len(self.cluster.tiers)

    @cached_property
    def arrays(self) -> FabricArrays:
        """The flat form, for compiled code."""
        cluster = self.cluster
        bandwidth = np.array([tier.bytes_per_s for tier in cluster.tiers], dtype=np.float64)
        bandwidth[1:] /= self.congestion
        oversubscription = np.array([tier.oversubscription for tier in cluster.tiers], dtype=np.float64)
        oversubscription[0] = 1.0
        links, capacity = _links(cluster, self.congestion)
        return FabricArrays(
            peak=_falling(bandwidth),
            busy=_falling(bandwidth / oversubscription),
            latency_s=np.array([tier.latency_s for tier in cluster.tiers], dtype=np.float64),
            oversubscription=np.maximum.accumulate(oversubscription),
            nic=cluster.nic_bytes_per_s / self.congestion,
            groups=np.ascontiguousarray(cluster.groups, dtype=np.int32),
            rank=_depth_first(cluster.groups),
            links=links,
            capacity=capacity,
        )


def _falling(rates: FloatArray) -> FloatArray:
    """Limit each tier above the machine to the rate of the nearer tiers on the path."""
    result = rates.copy()
    result[1:] = np.minimum.accumulate(rates[1:])
    return result


def _depth_first(groups: IntArray) -> IntArray:
    """The rank of each machine when sorted by its top group, then the next below, and so on."""
    order = np.lexsort(groups)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank


def _links(cluster: Cluster, congestion: float) -> tuple[IntArray, FloatArray]:
    """One up-link per group below the top: [level, machine] -> link, and the capacity of each."""
    capacities = [cluster.uplinks(level, congestion) for level in range(len(cluster.tiers) - 1)]
    starts = np.cumsum([0, *map(len, capacities)])[:-1]
    links = cluster.groups[:-1] + starts.reshape(-1, 1)
    return np.ascontiguousarray(links, dtype=np.int32), np.concatenate([np.empty(0), *capacities])
