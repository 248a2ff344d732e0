"""The YAML form of a cluster.

    machines:                                two tiers: machine, network
      - {count: 20, devices: {A100: 8}}
    racks:                                   three tiers: machine, rack, network
      - {count: 4, machines: [...]}
    groups:                                  one more tier for every level of groups
      - {count: 2, racks: [...]}

These models check single values. `expand` checks what the parts mean together (names, depth, device types,
number of tiers).
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

from berth.cluster.model import FP32, DeviceKind, DeviceType
from berth.spec import Bandwidth, Bytes, Flops, Seconds, Spec, UsdPerHour

Count = Annotated[int, Field(gt=0, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
T = TypeVar("T")


def or_default(written: T | None, otherwise: T) -> T:
    """Return what is written, or else the default."""
    return otherwise if written is None else written


class DeviceSpec(Spec):
    """Facts of a device type, in a cluster's file and in the catalogue."""

    kind: DeviceKind | None = None
    memory: Bytes | None = None
    price: UsdPerHour | None = None
    flops: Flops | None = None
    precision: Name | None = None
    fp32: Flops | None = None
    memory_bandwidth: Bandwidth | None = None
    link: Bandwidth | None = None

    def device(self, name: str, known: DeviceType | None = None) -> DeviceType:
        """Return the device type; facts that are not stated are those of `known`."""
        base = known or DeviceType(name)
        precision = or_default(self.precision, base.precision)
        fp32 = base.fp32_flops if self.flops is None else None  # another peak: in proportion where it is used
        if precision == FP32:
            fp32 = or_default(self.flops, base.flops)
        return DeviceType(
            name=name,
            kind=self.kind or base.kind,
            memory_bytes=or_default(self.memory, base.memory_bytes),
            usd_per_hour=or_default(self.price, base.usd_per_hour),
            flops=or_default(self.flops, base.flops),
            memory_bytes_per_s=or_default(self.memory_bandwidth, base.memory_bytes_per_s),
            precision=precision,
            fp32_flops=or_default(self.fp32, fp32),
            link_bytes_per_s=or_default(self.link, base.link_bytes_per_s),
        )


class TierSpec(Spec):
    """One level of distance; the bandwidth is that of ONE device."""

    name: Name | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    oversubscription: Annotated[float, Field(ge=1)] | None = None


class MachineSpec(Spec):
    """`count` equal machines."""

    devices: Annotated[dict[str, Count], Field(min_length=1)]
    name: Name | None = None
    count: Count = 1
    cores: Count | None = None
    memory: Bytes | None = None
    nic: Bandwidth | None = None
    price: UsdPerHour | None = None


class RackSpec(Spec):
    """`count` equal racks."""

    machines: Annotated[list[MachineSpec], Field(min_length=1)]
    name: Name | None = None
    count: Count = 1


class GroupSpec(Spec):
    """`count` equal groups, each made of smaller groups, of racks or of machines."""

    name: Name | None = None
    count: Count = 1
    groups: Annotated[list[GroupSpec], Field(min_length=1)] | None = None
    racks: Annotated[list[RackSpec], Field(min_length=1)] | None = None
    machines: Annotated[list[MachineSpec], Field(min_length=1)] | None = None


class ClusterSpec(Spec):
    """The whole file."""

    name: Name | None = None
    description: str | None = None
    devices: dict[Name, DeviceSpec] = Field(default_factory=dict)
    tiers: Annotated[list[TierSpec], Field(min_length=1)] | None = None
    groups: Annotated[list[GroupSpec], Field(min_length=1)] | None = None
    racks: Annotated[list[RackSpec], Field(min_length=1)] | None = None
    machines: Annotated[list[MachineSpec], Field(min_length=1)] | None = None
