"""Builds a planning problem from a model's layer profile and a cluster: what every stage computes, moves and holds.

`problem_for` fills in the arrays of a `Problem`: types and their limits, places of tables, all-reduce, servers and
readers, and for each layer and choice the curves of `berth.plan.layer_costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from berth.cluster.catalogue import device_type
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.plan.layer_costs import LayerCosts
from berth.plan.problem import CURVES, FACTS, UNLIMITED, Choice, DevicePool, HostPool, Problem, checked
from berth.plan.profile.host import HostRates, host_rates
from berth.plan.profile.layer_profile import LayerProfile
from berth.plan.rented import CORE_MEMORY_BYTES, cheapest_core, rented_types, without_forbidden
from berth.plan.world import DEFAULT_STEPS, MACHINE, SYNC, UTILISATION, ProblemSource, WorldOptions

READ_FORMAT = "parquet"
_CORE = "cpu-core"


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
        self.costs = LayerCosts(source, self.batch)

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
        curves = np.zeros((len(choices), len(profile.layers), CURVES, len(self.costs.grid)))
        cross = np.zeros((len(choices), len(profile.layers), 3))
        message = np.zeros((len(choices), 2))
        for row, choice in enumerate(choices):
            self.costs.fill(choice, facts[row], curves[row], cross[row], message[row])
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
            grid=self.costs.grid,
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
        has_tables = any(layer.touched_bytes for layer in self.profile.layers)
        places: Iterable[str] = self.options.tables if has_tables else ("",)
        return tuple(
            Choice(device, place, one.per_machine if place == MACHINE else UNLIMITED)
            for device, one in enumerate(self.source.rented)
            for place in places
        )

    def host_pool(self) -> HostPool:
        """Return the cores of servers and readers."""
        source, host = self.source, self.source.host
        first = self.profile.layers[0]
        read_bytes = self.batch * first.input_bytes / self.profile.batch
        readers_s = (
            max(read_bytes / self.rates.decode_bytes_per_s[READ_FORMAT], read_bytes / self.costs.host_share)
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


def _rows(profile: LayerProfile, options: WorldOptions) -> float:
    """Return the rows of all tables: the user's, the model's in production, or as many as were profiled."""
    if not any(layer.touched_bytes for layer in profile.layers):
        return 0.0
    return (
        options.rows or profile.rows or sum(layer.sparse_bytes / layer.row_bytes for layer in profile.layers)
    )
