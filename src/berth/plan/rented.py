"""What renting a device brings: its machine, its share of the NIC, host cores and memory, and the all-reduce there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import device_type, known_devices, resolve
from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.errors import InputError, UnknownNameError
from berth.network import _kernels
from berth.network.fabric import Fabric
from berth.plan.problem import UNLIMITED
from berth.plan.profile.host import HostRates

Floats = NDArray[np.float64]

CORE_MEMORY_BYTES = 4 * 2**30  # of a core where no machine states it: 192 GiB over 48 cores
LINK_BYTES_PER_S = 16e9  # PCIe 3.0 x16, for devices without a stated link
# Machines of device types that are given without a cluster: devices, NIC, cores
RENTED = {"gpu": (8, 100e9 / 8, 48), "cpu": (48, 25e9 / 8, 48)}
SHARED_MEMORY_WORKERS = 8  # of a machine that sum gradients in shared memory; more form a ring
_RENTED_MACHINES = 64
_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Rented:
    """What renting one device of a type brings: its machine, its share of the NIC, cores and memory of the host."""

    device: DeviceType
    per_machine: int
    nic_bytes_per_s: float  # its share
    link_bytes_per_s: float  # to another device of its machine
    cores: float  # of the host, for this device
    usd_per_hour: float  # with its share of the host
    limit: int
    memory_bytes: float | None
    ring: Floats  # [2, replicas]: seconds per byte, and seconds, of an all-reduce


def rented_types(
    cluster: Cluster | Sequence[str], rates: HostRates, nic_share: float | None
) -> tuple[Rented, ...]:
    """Return every type of a cluster, or types by name (without limits); `nic_share` replaces that of each device."""
    found = _rented_in(cluster) if isinstance(cluster, Cluster) else _rented_by_name(cluster)
    if nic_share is not None:
        found = tuple(replace(one, nic_bytes_per_s=nic_share) for one in found)
    return tuple(_with_memory_links(one, rates) for one in found)


def cheapest_core(rented: Sequence[Rented]) -> Rented | None:
    """Return the cheapest CPU core among the devices."""
    cores = [one for one in rented if one.device.kind == "cpu"]
    return min(cores, key=lambda one: one.usd_per_hour, default=None)


def without_forbidden(rented: tuple[Rented, ...], forbid: Sequence[str]) -> tuple[Rented, ...]:
    """Return the types that are not forbidden; each must have a price."""
    names = [one.device.name for one in rented]
    forbidden = {match_device(name, names) for name in forbid}
    allowed = tuple(one for one in rented if one.device.name not in forbidden)
    if not names:
        raise InputError("there is no device to plan on", hint="add machines to the cluster")
    if not allowed:
        raise InputError("every device type is forbidden", hint=f"there are {', '.join(names)}")
    for one in allowed:
        if not one.usd_per_hour:
            unknown = one.device.usd_per_hour is None
            raise InputError(
                f"the price of {one.device.name} is {'not known' if unknown else '$0/h'}",
                hint="state it in the cluster's file (price: $2.42/h), or leave it out with "
                f"--forbid {one.device.name}",
            )
    return allowed


def match_device(text: str, names: Iterable[str]) -> str:
    """Return the name that `text` is, whatever its case, or an alias of."""
    known = {name.lower(): name for name in names}
    found = known.get(text.lower()) or known.get((resolve(text) or "").lower())
    if found is None:
        raise UnknownNameError("device type of this problem", text, known.values())
    return found


def _rented_in(cluster: Cluster) -> tuple[Rented, ...]:
    return tuple(
        _rented(cluster, index) for index in range(len(cluster.device_types)) if cluster.count_of(index)
    )


def _rented_by_name(names: Sequence[str]) -> tuple[Rented, ...]:
    """Return device types without a cluster: as many machines as wanted, of a usual size."""
    devices = {device.name: device for device in map(device_type, names)}
    return tuple(replace(_rented(_usual_machines(device), 0), limit=UNLIMITED) for device in devices.values())


def _usual_machines(device: DeviceType) -> Cluster:
    count, nic, cores = RENTED[device.kind]
    memory = cores * CORE_MEMORY_BYTES
    machines = tuple(Machine(f"m{row}", ((0, count),), cores, memory, nic) for row in range(_RENTED_MACHINES))
    groups = np.stack([np.arange(_RENTED_MACHINES), np.zeros(_RENTED_MACHINES)]).astype(np.int32)
    tiers = (Tier("machine", 300e9, 1e-6), Tier("network", nic, 5e-6))
    names = (tuple(machine.name for machine in machines), ("all",))
    return Cluster(device.name, (device,), tiers, machines, groups, names)


def _rented(cluster: Cluster, index: int) -> Rented:
    device = cluster.device_types[index]
    machines = [
        (row, machine, count)
        for row, machine in enumerate(cluster.machines)
        for kind, count in machine.devices
        if kind == index
    ]
    entry = known_devices().get(resolve(device.name) or "")
    known = entry.device.link_bytes_per_s if entry else None  # of clusters journalled without links
    link = device.link_bytes_per_s or known or LINK_BYTES_PER_S
    link = min(link, cluster.tiers[0].bytes_per_s)
    shares = [_nic_share(cluster, machine, index) for _, machine, _ in machines]
    cores = [(machine.cores or machine.size) / machine.size for _, machine, _ in machines]
    price = device.usd_per_hour or 0.0
    if price:
        paid = sum((machine.usd_per_hour or 0.0) / machine.size * count for _, machine, count in machines)
        price += paid / cluster.count_of(index)
    return Rented(
        device=device,
        per_machine=min(count for _, _, count in machines),
        nic_bytes_per_s=min(shares),
        link_bytes_per_s=link,
        cores=min(cores),
        usd_per_hour=price,
        limit=cluster.count_of(index),
        memory_bytes=_memory(device, [machine for _, machine, _ in machines]),
        ring=_ring(cluster, [(row, count) for row, _, count in machines], link),
    )


def _with_memory_links(one: Rented, rates: HostRates) -> Rented:
    """Return a CPU core with the rate at which its machine's processes all-reduce through memory."""
    if one.device.kind != "cpu":
        return one
    rate = min(one.link_bytes_per_s, rates.allreduce_bytes_per_s)
    ring = one.ring.copy()
    counts = np.arange(ring.shape[1])
    inside = np.clip(counts, 1, one.per_machine)
    ring[0] += _memory_passes(inside) / rate - 2 * (inside - 1) / inside / one.link_bytes_per_s
    ring[1] += np.where(counts > 1, rates.allreduce_call_s, 0.0)
    return replace(one, link_bytes_per_s=rate, ring=np.maximum.accumulate(ring, axis=1))


def _memory_passes(workers: NDArray[np.int64]) -> Floats:
    """Return how often gradients pass through memory for each worker: written once, and those of all read.

    The rate counts the three passes of two workers as one. More workers than read all parts form a ring.
    """
    shared = np.where(workers > 1, (1 + workers) / 3, 0.0)
    return np.where(workers <= SHARED_MEMORY_WORKERS, shared, np.maximum(2 * (workers - 1) / workers, 1.0))


def _nic_share(cluster: Cluster, machine: Machine, index: int) -> float:
    """Return one device's share of its machine's NIC: devices of different types share it by their prices."""
    above = cluster.tiers[-1]
    each = above.bytes_per_s / above.oversubscription if len(cluster.tiers) > 1 else above.bytes_per_s
    total = min(each * machine.size, (machine.nic_bytes_per_s or math.inf) / above.oversubscription)
    weights = [cluster.device_types[kind].usd_per_hour or 1.0 for kind, _ in machine.devices]
    whole = sum(weight * count for weight, (_, count) in zip(weights, machine.devices, strict=True))
    own = next(weight for weight, (kind, _) in zip(weights, machine.devices, strict=True) if kind == index)
    return min(each, total * own / whole)


def _memory(device: DeviceType, machines: Sequence[Machine]) -> float | None:
    """Return the memory of one device; a core's is its share of the smallest host that states it."""
    if device.memory_bytes or device.kind == "gpu":
        return device.memory_bytes
    shares = [
        machine.memory_bytes / (machine.cores or machine.size) for machine in machines if machine.memory_bytes
    ]
    return min(shares, default=float(CORE_MEMORY_BYTES))


def _ring(cluster: Cluster, machines: Sequence[tuple[int, int]], link: float) -> Floats:
    """Return seconds per byte, and seconds, of an all-reduce among 0, 1, 2 .. devices that fill machine after machine.

    It never falls with more devices: where the network's formula does (a machine that is filled evenly), the larger
    time of fewer devices is kept.
    """
    net = Fabric(cluster).arrays
    rates = net.busy.copy()
    rates[0] = min(rates[0], link)
    net = net._replace(busy=rates)
    total = sum(count for _, count in machines)
    ring = np.zeros((2, total + 1))
    first = machines[0][1]
    for count in range(2, first + 1):
        ring[:, count] = _ring_of(net, machines[:1], count)
    end = first
    for used in range(2, len(machines) + 1):
        begin, end = end, end + machines[used - 1][1]
        ring[:, begin + 1 : end + 1] = np.array(_ring_of(net, machines[:used]))[:, None]
    return np.maximum.accumulate(ring, axis=1)


def _ring_of(
    net: object, machines: Sequence[tuple[int, int]], count: int | None = None
) -> tuple[float, float]:
    rows = np.array([row for row, _ in machines], np.int32)
    counts = np.array([own if count is None else count for _, own in machines], np.int32)
    rows, fan, _ = _kernels.nest(rows, counts, net)  # type: ignore[arg-type]
    latency = _kernels.hierarchical_ring_s(0.0, rows, fan, net)  # type: ignore[arg-type]
    whole = _kernels.hierarchical_ring_s(_GIGABYTE, rows, fan, net)  # type: ignore[arg-type]
    return (whole - latency) / _GIGABYTE, latency
