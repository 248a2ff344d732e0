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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import device_type
from berth.cluster.model import Cluster, DeviceType
from berth.errors import InputError, UnknownNameError
from berth.plan.problem import (
    COMPUTE,
    CURVES,
    EXAMPLE_BYTES,
    EXCHANGE,
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
    along,
)
from berth.plan.rented import (
    CORE_MEMORY_BYTES,
    RENTED,
    Rented,
    cheapest_core,
    rented_types,
    without_forbidden,
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
READ_FORMAT = "parquet"
_CORE = "cpu-core"


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
    busy_cores: float = (
        1.0  # share of the other cores of a machine that compute too: all, where machines are rented
    )
    nic_share: float | None = None  # bytes per second of each device; None: its share of its machine's NIC

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UnknownNameError("mode", self.mode, MODES)
        for place in self.tables:
            if place not in TABLES:
                raise UnknownNameError("place for tables", place, TABLES)
        if not self.tables:
            raise InputError("there is no place for tables", hint=f"choose among {', '.join(TABLES)}")


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
    options = options or WorldOptions()
    rates = (rates or host_rates()).with_busy_cores(options.busy_cores)
    whole = cluster if isinstance(cluster, Cluster) else None
    everything = rented_types(cluster, rates, options.nic_share)
    rented = without_forbidden(everything, forbid)
    host = cheapest_core(everything)
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
        cross = np.zeros((len(choices), len(profile.layers), 3))
        message = np.zeros((len(choices), 2))
        for row, choice in enumerate(choices):
            self.fill(choice, facts[row], curves[row], cross[row], message[row])
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
            message=message,
            loop_s=self.rates.worker_step_s if self.is_sync else 0.0,
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

    def fill(self, choice: Choice, facts: Floats, curves: Floats, cross: Floats, message: Floats) -> None:
        """Write the facts, curves and crossings of all layers for one choice."""
        one = self.source.rented[choice.device]
        times = self.profile.on(one.device)
        compute_s = times.compute_s
        if one.device.kind == "cpu":
            compute_s = compute_s * self._slowdown()
        self._fill_crossings(one, cross, message)
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
            self._fill_compute(curves[row], compute_s[row])
            if row == 0:
                self._fill_loop(curves[row])
                self._add(curves[row], IN, self.calls * layer.input_bytes / batch / one.nic_bytes_per_s)
            if layer.touched_bytes:
                self._fill_tables(choice, one, row, facts[row], curves[row])
            if not self.is_sync and layer.dense_bytes:
                self._fill_dense_on_servers(one, layer, facts[row], curves[row])

    def _slowdown(self) -> Floats:
        """Return how much longer a core computes while the other cores of its machine do too, at each batch known."""
        moved = sum(layer.moved_bytes for layer in self.profile.layers) / self.profile.batch
        return np.array([self.rates.compute_slowdown(moved * batch) for batch in self.profile.batches])

    def _fill_crossings(self, one: Rented, cross: Floats, message: Floats) -> None:
        """Write what a boundary after each layer costs: the NIC, and on a CPU core packing and unpacking."""
        copy_s = self.rates.stage_byte_s if one.device.kind == "cpu" else 0.0
        call_s = self.rates.stage_call_s if one.device.kind == "cpu" else 0.0
        for row, layer in enumerate(self.profile.layers[:-1]):
            both = np.array([layer.output_bytes, layer.gradient_bytes]) / self.profile.batch
            cross[row, :2] = both / one.nic_bytes_per_s
            cross[row, 2] = both.sum() * copy_s
        if self.is_sync:
            message[:] = MESSAGE_S, call_s
        else:  # one call for every batch of a replica; a stage that is not the first one has a loop of its own
            cross[:-1, :2] += MESSAGE_S / self.batch
            cross[:-1, 2] += (call_s + self.rates.worker_step_s / 2) / self.batch

    def _fill_compute(self, curves: Floats, seconds: Floats) -> None:
        known = np.array(self.profile.batches, float)
        if not self.is_sync:
            self._add(curves, COMPUTE, np.array([along(known, seconds, self.batch)]))
            return
        curves[COMPUTE, 0] = max(0.0, float(along(known, seconds, 0.0)))
        curves[COMPUTE, 1:] = seconds

    def _fill_loop(self, curves: Floats) -> None:
        """Add the loop around the model for every example; once per step, it is in `loop_s` of a sync problem."""
        per_step = 0.0 if self.is_sync else self.rates.worker_step_s
        self._add(curves, COMPUTE, self.calls * self.rates.worker_example_s + per_step)

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
            self._add(curves, EXCHANGE, 2 * row_bytes / rate)
            if is_cpu:
                local = lookups * rates.local_lookup_s(width) + rows * rates.local_row_s(width)
                self._add(curves, COMPUTE, local, rates.local_call_s)
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
        packing = rows * (rates.client_lookup_s(width) + rates.client_row_s(width))
        is_cpu = one.device.kind == "cpu"
        self._add(curves, COMPUTE if is_cpu else IN, packing if is_cpu else packing / one.cores)
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


def _rows(profile: LayerProfile, options: WorldOptions) -> float:
    """Return the rows of all tables: the user's, the model's in production, or as many as were profiled."""
    if not any(layer.touched_bytes for layer in profile.layers):
        return 0.0
    return (
        options.rows or profile.rows or sum(layer.sparse_bytes / layer.row_bytes for layer in profile.layers)
    )


def _host_share(source: ProblemSource) -> float:
    if source.host is not None:
        return source.host.nic_bytes_per_s
    devices, nic, _ = RENTED["cpu"]
    return source.options.nic_share or nic / devices
