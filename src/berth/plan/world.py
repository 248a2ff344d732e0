"""Builds a planning problem from a model's layer profile and a cluster: what every stage computes, moves and holds.

- A device sends and receives over its share of its machine's NIC: all its traffic together, each direction apart.
- Computation is the profile's curve over the examples of a call; a CPU worker also packs and unpacks its rows, on the
  same core. The optimiser step comes once per step.
- Sync: replicas of a stage all-reduce dense gradients after the backward pass (`berth.network`, as many replicas per
  machine as fit). Async: each replica has its own batch, and pulls and pushes dense parameters like rows.
- Tables are on parameter servers, on servers that keep cold rows on disk, or in the memory of the stage's own
  devices, within one machine or over all replicas. Servers and readers are cores that the plan sizes and pays for.

docs/design/planning.md has the formulas and the sources of the constants.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import device_type, known_devices, resolve
from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.errors import InputError, UnknownNameError
from berth.network import _kernels
from berth.network.fabric import Fabric
from berth.plan.problem import (
    COMPUTE,
    CURVES,
    EXAMPLE_BYTES,
    FACTS,
    HAS_TABLES,
    HELD_BYTES,
    IN,
    MICRO_BATCHES,
    OPTIMISER_S,
    OUT,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
    UNLIMITED,
    Choice,
    DevicePool,
    HostPool,
    Problem,
    checked,
)
from berth.plan.profile.host import HostRates, host_rates
from berth.plan.profile.layer_profile import (
    DENSE_COPIES,
    INDEX_BYTES,
    SPARSE_COPIES,
    LayerFacts,
    LayerProfile,
)

Floats = NDArray[np.float64]

SYNC, ASYNC = "sync", "async"
MODES = (SYNC, ASYNC)
SERVERS, DISK, MACHINE, REPLICAS = "servers", "disk", "machine", "replicas"
TABLES = (SERVERS, DISK, MACHINE, REPLICAS)
DEFAULT_STEPS = 16  # times the profile's batch, the default batch of a sync step
MESSAGE_S = 50e-6  # software and latency of a message between two machines
KEY_BYTES = 8
HOT_ROWS = 0.1  # share of the rows that servers with a disk tier keep in memory
COLD_LOOKUPS = 0.05  # share of distinct rows that are then read from disk
UTILISATION = 0.7  # of server and reader cores and of their NICs: beyond it, requests queue
CORE_MEMORY_BYTES = 4 * 2**30  # of a core where no machine states it: 192 GiB over 48 cores
LINK_BYTES_PER_S = 16e9  # PCIe 3.0 x16, for devices without a stated link
READ_FORMAT = "parquet"
_CORE = "cpu-core"
# Machines of device types that are given without a cluster: devices, NIC, cores
_RENTED = {"gpu": (8, 100e9 / 8, 48), "cpu": (48, 25e9 / 8, 48)}
_RENTED_MACHINES = 64
_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """How the model is to be trained; None is a default that `problem_for` derives from the profile."""

    mode: str = SYNC
    batch: int | None = None  # examples of one step of all replicas (sync)
    batch_per_replica: int | None = None  # of one step of a replica (async)
    staleness: int | None = None  # async: steps by which a gradient may be old; None: any
    rows: float | None = None  # of all tables together
    tables: tuple[str, ...] = TABLES  # places to choose from
    whole_machines: bool = False  # rent machines instead of devices
    micro: tuple[int, ...] = MICRO_BATCHES  # numbers of micro-batches to choose from
    nic_share: float | None = None  # bytes per second of each device; None: its share of its machine's NIC

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        for place in self.tables:
            if place not in TABLES:
                raise UnknownNameError("place for tables", place, TABLES)
        if not self.tables:
            raise InputError("there is no place for tables", hint=f"choose among {', '.join(TABLES)}")


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


@dataclass(frozen=True)
class ProblemSource:
    """Where the numbers of a problem come from."""

    profile: LayerProfile
    cluster: Cluster | None
    rented: tuple[Rented, ...]
    host: Rented | None  # of servers and readers; None: the catalogue's core
    rates: HostRates
    options: WorldOptions
    rows: float  # of all tables; 0: the model has none
    fixed_is_stated: bool = False
    devices: tuple[DeviceType, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(one.device for one in self.rented))


def problem_for(
    profile: LayerProfile,
    cluster: Cluster | Sequence[str],
    throughput: float,
    samples: float = 1e9,
    epochs: float = 1.0,
    fixed_usd_per_hour: float | None = None,
    *,
    forbid: Sequence[str] = (),
    options: WorldOptions | None = None,
    rates: HostRates | None = None,
) -> Problem:
    """Return the problem of a profile on a cluster, or on device types by name (without limits)."""
    options, rates = options or WorldOptions(), rates or host_rates()
    whole = cluster if isinstance(cluster, Cluster) else None
    everything = _rented_in(whole) if whole else _rented_by_name(cluster, rates)  # type: ignore[arg-type]
    if options.nic_share is not None:
        everything = tuple(replace(one, nic_bytes_per_s=options.nic_share) for one in everything)
    everything = tuple(_with_memory_links(one, rates) for one in everything)
    rented = _allowed(everything, forbid)
    host = _host(everything)
    rows = _rows(profile, options)
    source = ProblemSource(profile, whole, rented, host, rates, options, rows, fixed_usd_per_hour is not None)
    world = _World(source)
    return checked(world.problem(throughput, samples, epochs, fixed_usd_per_hour))


class _World:
    """Fills in the arrays of a problem."""

    def __init__(self, source: ProblemSource) -> None:
        self.source, self.profile, self.rates = source, source.profile, source.rates
        self.options = source.options
        self.is_sync = self.options.mode == SYNC
        self.batch = float(self._batch())
        self.micro = tuple(count for count in self.options.micro if count <= self.batch)
        if self.is_sync and not self.micro:
            raise InputError(
                f"a batch of {self.batch:,.0f} can't be divided into {min(self.options.micro):,} micro-batches",
                hint="give a larger --batch or a smaller --micro",
            )
        known = np.array(self.profile.batches, float)
        self.grid = np.array([0.0, self.batch]) if not self.is_sync else np.concatenate([[0.0], known])
        self.calls = np.array([self.batch]) if not self.is_sync else known
        self.host_share = _host_share(source)
        self.table_layers = [row for row, layer in enumerate(self.profile.layers) if layer.touched_bytes]
        profiled = [
            layer.sparse_bytes / layer.row_bytes if layer.touched_bytes else 0.0
            for layer in self.profile.layers
        ]
        self.table_bytes = [
            source.rows * rows / (sum(profiled) or 1.0) * (SPARSE_COPIES * layer.row_bytes + INDEX_BYTES)
            for rows, layer in zip(profiled, self.profile.layers, strict=True)
        ]

    def _batch(self) -> int:
        if self.is_sync:
            return self.options.batch or DEFAULT_STEPS * self.profile.batch
        return self.options.batch_per_replica or self.profile.batch

    def problem(self, throughput: float, samples: float, epochs: float, fixed: float | None) -> Problem:
        """Return the problem at a throughput."""
        source, profile = self.source, self.profile
        choices = self.choices()
        host = self.host_pool()
        facts = np.zeros((len(choices), len(profile.layers), FACTS))
        curves = np.zeros((len(choices), len(profile.layers), CURVES, len(self.grid)))
        cross = np.zeros((len(choices), len(profile.layers), 2))
        for row, choice in enumerate(choices):
            self.fill(choice, facts[row], curves[row], cross[row])
        longest = max(one.ring.shape[1] for one in source.rented)
        ring = np.stack(
            [np.pad(one.ring, ((0, 0), (0, longest - one.ring.shape[1])), "edge") for one in source.rented]
        )
        coordinator = host.usd_per_hour if fixed is None else fixed
        unit, stale = self.options.whole_machines, self.options.staleness
        types = tuple(
            DevicePool(
                one.device.name, one.usd_per_hour, one.limit, one.memory_bytes, one.per_machine if unit else 1
            )
            for one in source.rented
        )
        problem = Problem(
            batch=self.batch,
            throughput=float(throughput),
            samples=float(samples),
            epochs=float(epochs),
            types=types,
            layers=profile.names,
            kinds=profile.kinds,
            allowed=np.ones((len(profile.layers), len(types)), bool),
            choices=choices,
            grid=self.grid,
            facts=facts,
            curves=curves,
            cross=cross,
            max_replicas=UNLIMITED if self.is_sync or stale is None else stale + 1,
            message_s=MESSAGE_S if self.is_sync else 0.0,
            ring=ring if self.is_sync else np.zeros_like(ring),
            host=host,
            fixed_usd_per_hour=coordinator,
            micro=self.micro if self.is_sync else (),
            source=source,
        )
        return problem.allowing(problem.allowed)

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices of each type; without tables, one."""
        places: Iterable[str] = self.options.tables if self.table_layers else ("",)
        return tuple(
            Choice(device, place, one.per_machine if place == MACHINE else UNLIMITED)
            for device, one in enumerate(self.source.rented)
            for place in places
        )

    def fill(self, choice: Choice, facts: Floats, curves: Floats, cross: Floats) -> None:
        """Write the facts, curves and crossings of all layers for one choice."""
        one = self.source.rented[choice.device]
        times = self.profile.on(one.device)
        for row, layer in enumerate(self.profile.layers):
            batch = self.profile.batch
            copies = DENSE_COPIES if self.is_sync else _ASYNC_COPIES
            facts[row, HELD_BYTES] = copies * layer.dense_bytes
            example_bytes = layer.activation_bytes / batch
            if self.is_sync:
                facts[row, OPTIMISER_S] = times.step_s[row]
                facts[row, SYNC_BYTES] = layer.dense_bytes
                facts[row, EXAMPLE_BYTES] = example_bytes
            else:
                facts[row, HELD_BYTES] += example_bytes * self.batch
            cross[row] = np.array([layer.output_bytes, layer.gradient_bytes]) / batch / one.nic_bytes_per_s
            if not self.is_sync:
                cross[row] += MESSAGE_S / self.batch
            self._fill_compute(curves[row], times.compute_s[row])
            if row == 0:
                self._fill_loop(facts[row], curves[row])
                self._add(curves[row], IN, self.calls * layer.input_bytes / batch / one.nic_bytes_per_s)
            if layer.touched_bytes:
                self._fill_tables(choice, one, row, facts[row], curves[row])
            if not self.is_sync and layer.dense_bytes:
                self._fill_dense_on_servers(one, layer, facts[row], curves[row])
        cross[len(self.profile.layers) - 1] = 0.0

    def _fill_compute(self, curves: Floats, seconds: Floats) -> None:
        known = np.array(self.profile.batches, float)
        if not self.is_sync:
            self._add(curves, COMPUTE, np.array([_along(known, seconds, self.batch)]))
            return
        curves[COMPUTE, 0] = _along(known, seconds, 0.0)
        curves[COMPUTE, 1:] = seconds

    def _fill_loop(self, facts: Floats, curves: Floats) -> None:
        """Add the loop around the model: once per step, and for every example."""
        examples_s = self.calls * self.rates.worker_example_s
        if self.is_sync:
            facts[OPTIMISER_S] += self.rates.worker_step_s
            self._add(curves, COMPUTE, examples_s)
        else:
            self._add(curves, COMPUTE, examples_s + self.rates.worker_step_s)

    def _add(self, curves: Floats, which: int, at_calls: Floats, per_call: float = 0.0) -> None:
        """Add seconds at the calls of the grid; `per_call` is also there for the smallest call."""
        if self.is_sync:
            curves[which, 0] += per_call
        curves[which, 1:] += at_calls + per_call

    def _rows_of(self, layer: LayerFacts) -> Floats:
        """Return the distinct rows of each call."""
        return np.array([layer.touched_rows(float(call), self.profile.batch) for call in self.calls])

    def _fill_tables(self, choice: Choice, one: Rented, row: int, facts: Floats, curves: Floats) -> None:
        layer, rates = self.profile.layers[row], self.rates
        rows, width = self._rows_of(layer), layer.row_bytes
        lookups = np.array([layer.looked_up_rows(float(call), self.profile.batch) for call in self.calls])
        facts[HAS_TABLES] = 1.0
        row_bytes = rows * (width + KEY_BYTES)
        is_cpu = one.device.kind == "cpu"
        if choice.tables in (MACHINE, REPLICAS):
            facts[SHARDED_BYTES] = self.table_bytes[row]
            rate = one.link_bytes_per_s if choice.tables == MACHINE else one.nic_bytes_per_s
            # Rows that it asks for and gradients of its own shard come in, rows for others and gradients go out.
            self._add(curves, IN, 2 * row_bytes / rate)
            self._add(curves, OUT, 2 * row_bytes / rate)
            if is_cpu:
                local = lookups * rates.local_lookup_s(width) + rows * rates.local_row_s(width)
                self._add(curves, COMPUTE, local)
            return
        facts[SERVED_BYTES] = self.table_bytes[row] * (HOT_ROWS if choice.tables == DISK else 1.0)
        self._add(curves, IN, row_bytes / one.nic_bytes_per_s)
        self._add(curves, OUT, (row_bytes + rows * KEY_BYTES) / one.nic_bytes_per_s)
        packing = lookups * rates.client_lookup_s(width) + rows * rates.client_row_s(width)
        if is_cpu:
            self._add(curves, COMPUTE, packing, rates.client_call_s)
        else:  # the cores of its machine pack rows while the device waits for them
            self._add(curves, IN, packing / one.cores, rates.client_call_s)
        serving = rows * (rates.server_pull_s_per_row(width) + rates.server_push_s_per_row(width))
        if choice.tables == DISK:
            serving = serving + rows * COLD_LOOKUPS * rates.disk_row_s
        self._add(curves, SERVER_CPU, serving / UTILISATION, rates.server_call_s / UTILISATION)
        self._add(curves, SERVER_NIC, (row_bytes + rows * KEY_BYTES) / self.host_share / UTILISATION)

    def _fill_dense_on_servers(self, one: Rented, layer: LayerFacts, facts: Floats, curves: Floats) -> None:
        """Async: dense parameters are pulled and pushed with every batch of a replica."""
        rates, bytes_ = self.rates, np.array([float(layer.dense_bytes)])
        rows = bytes_ / layer.row_bytes if layer.touched_bytes else bytes_ / _DENSE_ROW_BYTES
        width = layer.row_bytes if layer.touched_bytes else _DENSE_ROW_BYTES
        facts[SERVED_BYTES] += 3 * layer.dense_bytes  # with Adam's moments
        self._add(curves, IN, bytes_ / one.nic_bytes_per_s)
        self._add(curves, OUT, bytes_ / one.nic_bytes_per_s)
        serving = rows * (rates.server_pull_s_per_row(width) + rates.server_push_s_per_row(width))
        self._add(curves, SERVER_CPU, serving / UTILISATION)
        self._add(curves, SERVER_NIC, bytes_ / self.host_share / UTILISATION)

    def host_pool(self) -> HostPool:
        """Return the cores of servers and readers."""
        source, host = self.source, self.source.host
        first = self.profile.layers[0]
        read_bytes = self.batch * first.input_bytes / self.profile.batch
        readers_s = (
            max(read_bytes / self.rates.decode_bytes_per_s[READ_FORMAT], read_bytes / self.host_share)
            / UTILISATION
        )
        if host is None:
            core = device_type(_CORE)
            return HostPool(-1, core.usd_per_hour or 0.0, CORE_MEMORY_BYTES, 1, readers_s)
        names = [one.device.name for one in source.rented]
        index = names.index(host.device.name) if host.device.name in names else -1
        unit = host.per_machine if self.options.whole_machines else 1
        memory = host.memory_bytes or CORE_MEMORY_BYTES
        return HostPool(index, host.usd_per_hour, memory, unit, readers_s)


_ASYNC_COPIES = 2  # weights and gradients: servers hold the moments
_DENSE_ROW_BYTES = 1024  # dense parameters on servers are rows of this size


def _along(batches: Floats, seconds: Floats, examples: float) -> float:
    """Return a curve between its points, or along its first or last line beyond them; never below 0."""
    if len(batches) == 1:
        return float(seconds[0] * examples / batches[0])
    right = int(np.clip(np.searchsorted(batches, examples), 1, len(batches) - 1))
    low, high = batches[right - 1], batches[right]
    share = (examples - low) / (high - low)
    return max(0.0, float(seconds[right - 1] * (1 - share) + seconds[right] * share))


def _rows(profile: LayerProfile, options: WorldOptions) -> float:
    """Return the rows of all tables: the user's, the model's in production, or as many as were profiled."""
    if not any(layer.touched_bytes for layer in profile.layers):
        return 0.0
    return (
        options.rows or profile.rows or sum(layer.sparse_bytes / layer.row_bytes for layer in profile.layers)
    )


def _host(rented: Sequence[Rented]) -> Rented | None:
    """Return the cheapest CPU core among the devices."""
    cores = [one for one in rented if one.device.kind == "cpu"]
    return min(cores, key=lambda one: one.usd_per_hour, default=None)


def _host_share(source: ProblemSource) -> float:
    if source.host is not None:
        return source.host.nic_bytes_per_s
    devices, nic, _ = _RENTED["cpu"]
    return source.options.nic_share or nic / devices


def _allowed(rented: tuple[Rented, ...], forbid: Sequence[str]) -> tuple[Rented, ...]:
    names = [one.device.name for one in rented]
    forbidden = {match_device(name, names) for name in forbid}
    allowed = tuple(one for one in rented if one.device.name not in forbidden)
    if not allowed:
        raise InputError("every device type is forbidden", hint=f"there are {', '.join(names)}")
    for one in allowed:
        if not one.usd_per_hour:
            raise InputError(
                f"the price of {one.device.name} is not known",
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


# --- what renting a device brings ---


def _rented_in(cluster: Cluster) -> tuple[Rented, ...]:
    return tuple(
        _rented(cluster, index) for index in range(len(cluster.device_types)) if cluster.count_of(index)
    )


def _rented_by_name(names: Sequence[str], rates: HostRates) -> tuple[Rented, ...]:
    """Return device types without a cluster: as many machines as wanted, of a usual size."""
    devices = {device.name: device for device in map(device_type, names)}
    return tuple(replace(_rented(_usual_machines(device), 0), limit=UNLIMITED) for device in devices.values())


def _usual_machines(device: DeviceType) -> Cluster:
    count, nic, cores = _RENTED[device.kind]
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
    link = (entry.link_bytes_per_s if entry else None) or LINK_BYTES_PER_S
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
    slower = 1 / rate - 1 / one.link_bytes_per_s
    counts = np.arange(ring.shape[1])
    inside = np.clip(counts, 1, one.per_machine)
    ring[0] += 2 * (inside - 1) / inside * slower
    ring[1] += np.where(counts > 1, rates.allreduce_call_s, 0.0)
    return replace(one, link_bytes_per_s=rate, ring=np.maximum.accumulate(ring, axis=1))


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


# --- pins and names ---


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
    return match_device(text, problem.type_names)


def restrict_to_types(problem: Problem, names: Sequence[str]) -> Problem:
    """Return the problem in which no layer may run on any other type."""
    kept = np.array([name in names for name in problem.type_names])
    return problem.allowing(problem.allowed & kept)
