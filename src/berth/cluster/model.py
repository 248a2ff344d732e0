"""Device types, machines, and the tiers that connect them: immutable facts.

A cluster is a tree. Level 0 groups devices into machines, level 1 groups machines into racks (or whatever the
second tier is called), and so on; the last level holds everything. Two devices are at tier t when the
smallest group that holds both is at level t.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray

DeviceKind = Literal["gpu", "cpu"]
FP32 = "fp32"  # the precision whose peak rate is that of plain single-precision units


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A type of device. None means unknown, never zero."""

    name: str
    kind: DeviceKind = "gpu"
    memory_bytes: int | None = None
    usd_per_hour: float | None = None
    flops: float | None = None  # peak, dense, at the precision people train in
    memory_bytes_per_s: float | None = None
    precision: str | None = None  # of `flops`, e.g. "bf16 tensor"
    fp32_flops: float | None = None  # peak rate of plain single-precision units
    link_bytes_per_s: float | None = None  # to a device of the same type in the same machine, one way


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of distance.

    `bytes_per_s` is what ONE device can send to another at this distance on an idle network. The up-link
    of a group into this tier carries the sum of its devices' rates divided by `oversubscription`.
    """

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    oversubscription: float = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A host: how many devices of each type (by index into the cluster's `device_types`)."""

    name: str
    devices: tuple[tuple[int, int], ...]  # (index of the device type, how many)
    cores: int | None = None
    memory_bytes: int | None = None
    nic_bytes_per_s: float | None = None  # all its devices together; None: each device has its own link
    usd_per_hour: float | None = None  # of the host itself, on top of its devices

    @property
    def size(self) -> int:
        """Devices of all types."""
        return sum(count for _, count in self.devices)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Machines and the groups they belong to.

    `groups[level][machine]` is the group of a machine at that level: row 0 is the machine itself, the last
    row is all zeros. Devices are numbered machine by machine, in the order of each machine's `devices`.
    """

    name: str
    device_types: tuple[DeviceType, ...]
    tiers: tuple[Tier, ...]
    machines: tuple[Machine, ...]
    groups: IntArray  # shape (len(tiers), len(machines))
    group_names: tuple[tuple[str, ...], ...] = field(repr=False)
    notes: tuple[str, ...] = ()  # assumptions made while reading the description

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Results computed from this cluster alone; see `berth.cluster.memo`."""
        return {}

    @cached_property
    def sizes(self) -> IntArray:
        """Devices of each machine."""
        return np.fromiter((machine.size for machine in self.machines), np.int32, len(self.machines))

    @cached_property
    def device_machine(self) -> IntArray:
        """The machine of each device."""
        return np.repeat(np.arange(len(self.machines), dtype=np.int32), self.sizes)

    @cached_property
    def device_type(self) -> IntArray:
        """The type of each device, as an index into `device_types`."""
        types = [kind for machine in self.machines for kind, _ in machine.devices]
        counts = [count for machine in self.machines for _, count in machine.devices]
        return np.repeat(np.asarray(types, dtype=np.int32), counts)

    @property
    def devices(self) -> int:
        """Devices of all machines and types."""
        return len(self.device_machine)

    @property
    def rack_level(self) -> int:
        """The level whose groups are shown as racks: the second tier, or machines where there is none."""
        return 1 if len(self.tiers) > 2 else 0

    def group_sizes(self, level: int) -> IntArray:
        """Return the number of devices of each group at a level."""
        return self._sizes_by_level[level]

    @cached_property
    def _sizes_by_level(self) -> tuple[IntArray, ...]:
        return tuple(
            self._sum_by_group(level, self.sizes).astype(np.int32) for level in range(len(self.tiers))
        )

    def uplinks(self, level: int, congestion: float = 1.0) -> FloatArray:
        """Return the bytes per second that each group at a level can send to the tier above it.

        Every machine contributes the rates of its GPUs at that tier, or its NIC if that is less; the sum is
        divided by the over-subscription of the tier above. Cores add nothing: a machine without GPUs counts as one
        device, but on a cluster without any GPU all devices count. The last level has no up-links.
        """
        if level + 1 >= len(self.tiers):
            return np.zeros(0)
        above = self.tiers[level + 1]
        rates = np.minimum(
            self._senders * (above.bytes_per_s / congestion), self.nic_bytes_per_s / congestion
        )
        return self._sum_by_group(level, rates) / above.oversubscription

    @cached_property
    def _senders(self) -> IntArray:
        """Devices of each machine that have a link of their own."""
        gpus = [
            sum(count for kind, count in machine.devices if self.device_types[kind].kind == "gpu")
            for machine in self.machines
        ]
        return np.maximum(1, np.array(gpus, np.int32)) if any(gpus) else self.sizes

    @cached_property
    def nic_bytes_per_s(self) -> FloatArray:
        """Rate of each machine's NIC; infinite if each device has its own link."""
        nics = (machine.nic_bytes_per_s for machine in self.machines)
        return np.fromiter((np.inf if nic is None else nic for nic in nics), np.float64, len(self.machines))

    def _sum_by_group(self, level: int, values: NDArray[Any]) -> FloatArray:
        sums = np.bincount(self.groups[level], weights=values, minlength=len(self.group_names[level]))
        return sums.astype(np.float64)

    def count_of(self, device_type: int) -> int:
        """Return the number of devices of one type."""
        return int((self.device_type == device_type).sum())

    @cached_property
    def usd_per_hour(self) -> float | None:
        """Price of the whole cluster; None if the price of any device is unknown."""
        prices = [kind.usd_per_hour for kind in self.device_types]
        total = 0.0
        for index, price in enumerate(prices):
            count = self.count_of(index)
            if count and price is None:
                return None
            total += count * (price or 0.0)
        return total + sum(machine.usd_per_hour or 0.0 for machine in self.machines)
