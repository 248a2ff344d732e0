"""Builds a planning problem from a model's layer profile and a cluster.

A device type of the cluster becomes a pool of devices: the cluster's count is its limit, with its price and memory.
Activations that cross from one type to another travel over the slowest NIC between machines. The fixed price pays
for what does not depend on the throughput: a coordinator, and enough server cores to hold the embedding tables.
Cores that read examples and serve rows grow with the throughput, so they cost every plan the same per example:
they do not change the choice, and `ProblemSource.serving_cores` states them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from berth.cluster.catalogue import device_type, resolve
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError, UnknownNameError
from berth.plan.problem import UNLIMITED, DevicePool, Problem, make_problem
from berth.plan.profile.layer_profile import LayerProfile
from berth.plan.profile.roofline import NETWORK_BYTES_PER_S

READ_BYTES_PER_S = 100e6  # of examples that one core parses
ROWS_PER_S = 5e6  # that one server core looks up and sends, or receives and updates
CORE_MEMORY_BYTES = 4 * 2**30  # of a server core where no machine states it: 192 GiB over 48 cores
_CORE = "cpu-core"
_TABLES = {"servers": "servers", "replicas": "replicas", "units": "replicas"}  # "units": the former name


@dataclass(frozen=True, slots=True)
class FixedCores:
    """Cores that every plan pays for at any throughput."""

    coordinator_cores: int
    server_cores: int
    core_usd_per_hour: float

    @property
    def usd_per_hour(self) -> float:
        """Price of all of them."""
        return (self.coordinator_cores + self.server_cores) * self.core_usd_per_hour


@dataclass(frozen=True, slots=True)
class ServingCores:
    """Cores that a throughput needs beyond the fixed ones."""

    reader_cores: int
    server_cores: int
    core_usd_per_hour: float

    @property
    def total(self) -> int:
        """Readers and servers."""
        return self.reader_cores + self.server_cores


@dataclass(frozen=True)
class ProblemSource:
    """Where the numbers of a problem come from."""

    profile: LayerProfile
    cluster: Cluster | None
    devices: tuple[DeviceType, ...]
    link_bytes_per_s: float
    fixed: FixedCores | None  # None: the user stated a price

    def serving_cores(self, throughput: float) -> ServingCores:
        """Return the cores that read examples and serve rows at this many examples per second."""
        profile = self.profile
        readers = math.ceil(throughput * profile.layers[0].input_bytes / profile.batch / READ_BYTES_PER_S)
        rows = sum(layer.touched_bytes / layer.row_bytes for layer in profile.layers)
        servers = math.ceil(throughput * 2 * rows / profile.batch / ROWS_PER_S)  # pulled and pushed
        servers = max(0, servers - (self.fixed.server_cores if self.fixed else 0))
        return ServingCores(readers, servers, core_usd_per_hour(self.devices))


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
    """Return the problem of a profile on a cluster, or on device types by name (without limits).

    `tables` says where the embedding tables are: on servers that the fixed price pays for, or sharded over the
    replicas of the stage that looks rows up, in whose memory they must fit. `link` is the bytes per second that one
    device sends to a device of another type (default: the slowest NIC of a machine).
    """
    if tables not in _TABLES:
        raise UnknownNameError("place for tables", tables, ("servers", "replicas"))
    on_servers = _TABLES[tables] == "servers"
    whole = cluster if isinstance(cluster, Cluster) else None
    devices = _allowed_devices(_devices(cluster), forbid)
    fixed = _fixed_cores(profile, whole, devices, on_servers) if fixed_usd_per_hour is None else None
    link = link or link_bytes_per_s(whole, devices)
    times = profile.times(devices)
    problem = make_problem(
        batch=profile.batch,
        throughput=throughput,
        samples=samples,
        epochs=epochs,
        types=tuple(_device_pool(device, whole) for device in devices),
        layers=profile.names,
        kinds=profile.kinds,
        oct_s=times.oct_s,
        odt_s=times.odt_s,
        alpha=times.alpha,
        beta=times.beta,
        cross_s=profile.cross_bytes / link,
        replicated_bytes=profile.replicated_bytes,
        sharded_bytes=None if on_servers else profile.sharded_bytes,
        fixed_usd_per_hour=fixed.usd_per_hour if fixed else fixed_usd_per_hour or 0.0,
    )
    return replace(problem, source=ProblemSource(profile, whole, devices, link, fixed))


def link_bytes_per_s(cluster: Cluster | None, devices: Sequence[DeviceType]) -> float:
    """Return the slowest NIC of a machine that holds one of these devices."""
    if cluster is None:
        return NETWORK_BYTES_PER_S
    names = {device.name for device in devices}
    return min(
        min(cluster.tiers[-1].bytes_per_s, machine.nic_bytes_per_s or math.inf)
        for machine in cluster.machines
        if any(cluster.device_types[index].name in names for index, _ in machine.devices)
    )


def apply_pins(problem: Problem, pins: Sequence[str]) -> Problem:
    """Apply `LAYERS=TYPE` pins: layers by name, prefix of a name or kind, or `a..b`; types by name or alias."""
    pinned: dict[str, str] = {}
    for pin in pins:
        layers, equals, type_name = pin.partition("=")
        if not equals or not layers.strip() or not type_name.strip():
            raise InputError(
                f"--pin {pin!r} is not LAYER=TYPE", hint="write it like --pin embedding=cpu-core"
            )
        name = match_type(problem, type_name.strip())
        for layer in match_layers(problem, layers.strip()):
            if pinned.setdefault(layer, name) != name:
                raise InputError(
                    f"layer {layer!r} is pinned to {pinned[layer]} and to {name}", hint="keep one of the pins"
                )
            problem = problem.pinned(layer, name)
    return problem


def match_layers(problem: Problem, text: str, *, exact: bool = False) -> list[str]:
    """Return the layers that `text` matches; `exact`: a full name or a range of them, no prefix."""
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
    if exact or not found:
        raise UnknownNameError("layer", text, problem.layers)
    return found


def match_type(problem: Problem, text: str) -> str:
    """Return the problem's device type that `text` names, whatever its case, or by an alias."""
    return _match_device(text, problem.type_names)


def restrict_to_types(problem: Problem, names: Sequence[str]) -> Problem:
    """Return the problem in which no layer may run on any other type."""
    kept = np.array([name in names for name in problem.type_names])
    return replace(problem, allowed=problem.allowed & kept)


def core_usd_per_hour(devices: Sequence[DeviceType]) -> float:
    """Return the price of the cheapest CPU core among the devices, else the catalogue's."""
    prices = [device.usd_per_hour for device in devices if device.kind == "cpu" and device.usd_per_hour]
    return min(prices, default=device_type(_CORE).usd_per_hour or 0.0)


def _match_device(text: str, names: Iterable[str]) -> str:
    known = {name.lower(): name for name in names}
    found = known.get(text.lower()) or known.get((resolve(text) or "").lower())
    if found is None:
        raise UnknownNameError("device type of this problem", text, known.values())
    return found


def _devices(cluster: Cluster | Sequence[str]) -> tuple[DeviceType, ...]:
    if not isinstance(cluster, Cluster):
        return tuple({device.name: device for device in map(device_type, cluster)}.values())
    return tuple(device for index, device in enumerate(cluster.device_types) if cluster.count_of(index))


def _allowed_devices(devices: tuple[DeviceType, ...], forbid: Sequence[str]) -> tuple[DeviceType, ...]:
    names = [device.name for device in devices]
    forbidden = {_match_device(name, names) for name in forbid}
    allowed = tuple(device for device in devices if device.name not in forbidden)
    if not allowed:
        raise InputError("every device type is forbidden", hint=f"there are {', '.join(names)}")
    return allowed


def _device_pool(device: DeviceType, cluster: Cluster | None) -> DevicePool:
    if not device.usd_per_hour:
        raise InputError(
            f"the price of {device.name} is not known",
            hint=f"state it in the cluster's file (price: $2.42/h), or leave it out with --forbid {device.name}",
        )
    if cluster is None:
        memory = device.memory_bytes or (CORE_MEMORY_BYTES if device.kind == "cpu" else None)
        return DevicePool(device.name, device.usd_per_hour, UNLIMITED, memory)
    index = cluster.device_types.index(device)
    price = device.usd_per_hour + _host_share(cluster, index)
    return DevicePool(device.name, price, cluster.count_of(index), _memory(device, cluster, index))


def _host_share(cluster: Cluster, index: int) -> float:
    """Return the price of the hosts per device of a type."""
    counts = [
        (machine, sum(n for device, n in machine.devices if device == index)) for machine in cluster.machines
    ]
    paid = sum((machine.usd_per_hour or 0.0) / machine.size * count for machine, count in counts if count)
    return paid / cluster.count_of(index)


def _memory(device: DeviceType, cluster: Cluster, index: int) -> float | None:
    """Return the memory of one device; a core's is its share of the smallest host that states it."""
    if device.memory_bytes or device.kind == "gpu":
        return device.memory_bytes
    shares = [
        machine.memory_bytes / (machine.cores or machine.size)
        for machine in cluster.machines
        if machine.memory_bytes and any(other == index for other, _ in machine.devices)
    ]
    return min(shares, default=None)


def _fixed_cores(
    profile: LayerProfile, cluster: Cluster | None, devices: Sequence[DeviceType], on_servers: bool
) -> FixedCores:
    table_bytes = float(profile.sharded_bytes.sum()) if on_servers else 0.0
    memory = None
    for device in devices:
        if device.kind == "cpu" and cluster is not None:
            memory = _memory(device, cluster, cluster.device_types.index(device))
    servers = math.ceil(table_bytes / (memory or CORE_MEMORY_BYTES))
    return FixedCores(1, servers, core_usd_per_hour(devices))
