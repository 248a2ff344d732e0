"""From a model's profile and a cluster to a planning problem.

A device type becomes a type of unit with the cluster's count as its limit, its price and memory. Activations
that cross from one type to another travel over the slowest port between machines. The fixed price pays for
what does not grow with the rate: a coordinator, and servers enough to hold the embedding tables. Cores that
read examples and serve rows grow with the rate, so they cost every plan the same per example: they do not
change the choice, and `feeding` says what they come to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from berth.cluster.catalogue import device_type, resolve
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError, UnknownNameError
from berth.plan.problem import UNLIMITED, Problem, UnitType, make_problem
from berth.plan.profile.document import LayerProfile
from berth.plan.profile.roofline import NETWORK_BYTES_PER_S

READ_BYTES_PER_S = 100e6  # of examples that one core parses
ROWS_PER_S = 5e6  # that one core of a server finds and sends, or takes and updates
CORE_MEMORY_BYTES = 4 * 2**30  # of a server's core where no machine says: 192 GiB over 48 cores
_CORE = "cpu-core"


@dataclass(frozen=True, slots=True)
class Fixed:
    """What is paid whatever the plan and its rate."""

    coordinator_cores: int
    server_cores: int
    core_usd_per_hour: float

    @property
    def usd_per_hour(self) -> float:
        """All of it."""
        return (self.coordinator_cores + self.server_cores) * self.core_usd_per_hour


@dataclass(frozen=True, slots=True)
class Feeding:
    """Cores that the rate asks for, beyond the fixed ones."""

    reader_cores: int
    server_cores: int
    usd: float  # for the whole training; the same on every plan, up to whole cores


@dataclass(frozen=True)
class Setup:
    """A problem, and where its numbers are from."""

    problem: Problem
    profile: LayerProfile
    cluster: Cluster | None
    devices: tuple[DeviceType, ...]
    link_bytes_per_s: float
    fixed: Fixed | None  # None: the user gave a price
    tables: str

    def feeding(self, rate: float) -> Feeding:
        """Who reads examples and serves rows at so many examples per second."""
        readers = math.ceil(rate * self.profile.layers[0].input_bytes / self.profile.batch / READ_BYTES_PER_S)
        rows = sum(layer.touched_bytes / layer.row_bytes for layer in self.profile.layers)
        servers = math.ceil(rate * 2 * rows / self.profile.batch / ROWS_PER_S)  # pulled and pushed
        servers = max(0, servers - (self.fixed.server_cores if self.fixed else 0))
        hours = self.problem.epochs * self.problem.samples / rate / 3600
        return Feeding(readers, servers, hours * (readers + servers) * core_usd_per_hour(self.devices))


def problem_for(
    profile: LayerProfile,
    cluster: Cluster | Sequence[str],
    throughput: float,
    samples: float = 1e9,
    epochs: float = 1.0,
    fixed_usd_per_hour: float | None = None,
    *,
    forbid: Sequence[str] = (),
    tables: str = "servers",
    link: float | None = None,
) -> Problem:
    """The problem alone; see `set_up`."""
    return set_up(
        profile,
        cluster,
        throughput,
        samples,
        epochs,
        fixed_usd_per_hour,
        forbid=forbid,
        tables=tables,
        link=link,
    ).problem


def set_up(
    profile: LayerProfile,
    cluster: Cluster | Sequence[str],
    throughput: float,
    samples: float = 1e9,
    epochs: float = 1.0,
    fixed_usd_per_hour: float | None = None,
    *,
    forbid: Sequence[str] = (),
    tables: str = "servers",
    link: float | None = None,
) -> Setup:
    """A profile on a cluster (or on devices by name, without limits), with all that was assumed.

    `tables` says who holds the embedding tables: servers that the fixed price pays for, or the units of the
    stage that looks rows up, in whose memory they must fit. `link`: bytes per second that one unit sends to a
    unit of another type (else the slowest port of a machine).
    """
    if tables not in ("servers", "units"):
        raise UnknownNameError("holder of tables", tables, ("servers", "units"))
    whole = cluster if isinstance(cluster, Cluster) else None
    devices = _without(_devices(cluster), forbid)
    fixed = _fixed(profile, whole, devices, tables) if fixed_usd_per_hour is None else None
    link = link or link_bytes_per_s(whole, devices)
    times = profile.times(devices)
    problem = make_problem(
        batch=profile.batch,
        throughput=throughput,
        samples=samples,
        epochs=epochs,
        types=tuple(_unit_type(device, whole) for device in devices),
        layers=profile.names,
        kinds=profile.kinds,
        oct_s=times.oct_s,
        odt_s=times.odt_s,
        alpha=times.alpha,
        beta=times.beta,
        cross_s=profile.cross_bytes / link,
        replicated_bytes=profile.replicated_bytes,
        sharded_bytes=profile.sharded_bytes if tables == "units" else None,
        fixed_usd_per_hour=fixed.usd_per_hour if fixed else fixed_usd_per_hour or 0.0,
    )
    return Setup(problem, profile, whole, devices, link, fixed, tables)


def link_bytes_per_s(cluster: Cluster | None, devices: Sequence[DeviceType]) -> float:
    """What one unit sends to a unit of another type: the slowest port of a machine that holds such devices."""
    if cluster is None:
        return NETWORK_BYTES_PER_S
    names = {device.name for device in devices}
    ports = [
        min(cluster.tiers[-1].bytes_per_s, machine.nic_bytes_per_s or math.inf)
        for machine in cluster.machines
        if any(cluster.device_types[kind].name in names for kind, _ in machine.devices)
    ]
    return min(ports)


def with_pins(problem: Problem, pins: Sequence[str]) -> Problem:
    """`emb=cpu`: layers by name, by the beginning of a name or kind, or `a..b`; types by name or alias."""
    pinned: dict[str, str] = {}
    for pin in pins:
        layers, equals, type_name = pin.partition("=")
        if not equals or not layers.strip() or not type_name.strip():
            raise InputError(
                f"--pin {pin!r} is not LAYER=TYPE", hint="write it like --pin embedding=cpu-core"
            )
        kind = type_called(problem, type_name.strip())
        for layer in layers_called(problem, layers.strip()):
            if pinned.setdefault(layer, kind) != kind:
                raise InputError(
                    f"layer {layer!r} is pinned to {pinned[layer]} and to {kind}", hint="keep one of the pins"
                )
            problem = problem.pinned(layer, kind)
    return problem


def layers_called(problem: Problem, text: str, *, whole: bool = False) -> list[str]:
    """The layers that a word of the user's means; `whole`: names in full, or a range of them."""
    if text in problem.layers:
        return [text]
    first, dots, last = text.partition("..")
    if dots:
        begin, end = problem.layer_index(first), problem.layer_index(last)
        if begin > end:
            raise InputError(f"{last!r} comes before {first!r}", hint=f"write it as {last}..{first}")
        return list(problem.layers[begin : end + 1])
    both = zip(problem.layers, problem.kinds, strict=True)
    found = [layer for layer, kind in both if layer.startswith(text) or kind.startswith(text)]
    if whole or not found:
        raise UnknownNameError("layer", text, problem.layers)
    return found


def type_called(problem: Problem, text: str) -> str:
    """The type that a word of the user's means, whatever its case and alias."""
    known = {name.lower(): name for name in problem.type_names}
    found = known.get(text.lower()) or known.get((resolve(text) or "").lower())
    if found is None:
        raise UnknownNameError("device type of this problem", text, problem.type_names)
    return found


def only_types(problem: Problem, names: Sequence[str]) -> Problem:
    """No layer runs on any other type."""
    kept = np.array([name in names for name in problem.type_names])
    return replace(problem, allowed=problem.allowed & kept)


def core_usd_per_hour(devices: Sequence[DeviceType]) -> float:
    """The cheapest core at hand, or the catalogue's."""
    prices = [device.usd_per_hour for device in devices if device.kind == "cpu" and device.usd_per_hour]
    return min(prices, default=device_type(_CORE).usd_per_hour or 0.0)


def _devices(cluster: Cluster | Sequence[str]) -> tuple[DeviceType, ...]:
    if not isinstance(cluster, Cluster):
        return tuple({device.name: device for device in map(device_type, cluster)}.values())
    counted = enumerate(cluster.device_types)
    return tuple(device for index, device in counted if cluster.count_of(index))


def _without(devices: tuple[DeviceType, ...], forbid: Sequence[str]) -> tuple[DeviceType, ...]:
    names = [device.name for device in devices]
    unwanted = set()
    for name in forbid:
        known = {other.lower(): other for other in names}
        found = known.get(name.lower()) or known.get((resolve(name) or "").lower())
        if found is None:
            raise UnknownNameError("device type of this problem", name, names)
        unwanted.add(found)
    left = tuple(device for device in devices if device.name not in unwanted)
    if not left:
        raise InputError("every device type is forbidden", hint=f"there are {', '.join(names)}")
    return left


def _unit_type(device: DeviceType, cluster: Cluster | None) -> UnitType:
    if not device.usd_per_hour:
        raise InputError(
            f"the price of {device.name} is not known",
            hint=f"state it in the cluster's file (price: $2.42/h), or leave it out with --forbid {device.name}",
        )
    if cluster is None:
        memory = device.memory_bytes or (CORE_MEMORY_BYTES if device.kind == "cpu" else None)
        return UnitType(device.name, device.usd_per_hour, UNLIMITED, memory)
    index = cluster.device_types.index(device)
    price = device.usd_per_hour + _host_share(cluster, index)
    return UnitType(device.name, price, cluster.count_of(index), _memory(device, cluster, index))


def _host_share(cluster: Cluster, index: int) -> float:
    """What the hosts cost on top, per device."""
    counts = [
        (machine, sum(n for kind, n in machine.devices if kind == index)) for machine in cluster.machines
    ]
    paid = sum((machine.usd_per_hour or 0.0) / machine.size * count for machine, count in counts if count)
    return paid / cluster.count_of(index)


def _memory(device: DeviceType, cluster: Cluster, index: int) -> float | None:
    """A device's own; a core's is its part of the smallest host that says."""
    if device.memory_bytes or device.kind == "gpu":
        return device.memory_bytes
    parts = [
        machine.memory_bytes / (machine.cores or machine.size)
        for machine in cluster.machines
        if machine.memory_bytes and any(kind == index for kind, _ in machine.devices)
    ]
    return min(parts, default=None)


def _fixed(
    profile: LayerProfile, cluster: Cluster | None, devices: Sequence[DeviceType], tables: str
) -> Fixed:
    table_bytes = float(profile.sharded_bytes.sum()) if tables == "servers" else 0.0
    memory = None
    for device in devices:
        if device.kind == "cpu" and cluster is not None:
            memory = _memory(device, cluster, cluster.device_types.index(device))
    servers = math.ceil(table_bytes / (memory or CORE_MEMORY_BYTES))
    return Fixed(1, servers, core_usd_per_hour(devices))
