"""What a plan rents and how much of it is used: devices, machines, NICs, servers, readers, prices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from berth.plan.plan import Plan, Stage, with_counts
from berth.plan.problem import (
    COMPUTE,
    OPTIMISER_S,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
    Problem,
)
from berth.plan.profile.layer_profile import along
from berth.plan.world import KEY_BYTES, MACHINE, SYNC, UTILISATION

BILLION = 1e9


@dataclass(frozen=True, slots=True)
class RentedPool:
    """Devices or cores that are rented for one purpose."""

    what: str  # stage 1, servers, readers, coordinator
    type_name: str
    count: int  # used
    paid: int  # rented: more than are used where only whole machines are
    per_machine: int | None  # None: not known
    usd_per_hour: float  # of all
    nic_load: float | None  # share of what their NICs carry in the busier direction; None: not known

    @property
    def machines(self) -> float | None:
        """Machines that they fill."""
        return None if not self.per_machine else self.paid / self.per_machine


@dataclass(frozen=True, slots=True)
class ServerNeeds:
    """Server cores that one stage needs at the plan's throughput, each reason alone."""

    lookups: float
    nic: float
    memory: float
    bytes: float  # of tables and dense parameters on the servers


def rented_pools(plan: Plan) -> list[RentedPool]:
    """Return everything that is rented, stage by stage, then servers, readers and coordinator."""
    pools = [_stage_pool(plan, row) for row in range(len(plan.stages))]
    pools += _host_pools(plan)
    fixed = plan.problem.fixed_usd_per_hour
    if fixed > 0:
        source = plan.problem.source
        is_core = source is not None and not source.fixed_is_stated
        pools.append(
            RentedPool(
                "coordinator" if is_core else "fixed", host_name(plan.problem) if is_core else "",
                1 if is_core else 0, 1 if is_core else 0, None, fixed, None,
            )
        )  # fmt: skip
    return pools


def _stage_pool(plan: Plan, row: int) -> RentedPool:
    stage, problem = plan.stages[row], plan.problem
    kind = problem.types[problem.type_index(stage.type_name)]
    paid = -(-stage.replicas // kind.unit) * kind.unit
    rented = problem.source.rented[problem.type_index(stage.type_name)] if problem.source else None
    return RentedPool(
        f"stage {row + 1}", stage.type_name, stage.replicas, paid, rented.per_machine if rented else None,
        paid * kind.usd_per_hour, nic_load(plan, stage) if rented else None,
    )  # fmt: skip


def _host_pools(plan: Plan) -> Iterator[RentedPool]:
    problem = plan.problem
    host, source = problem.host, problem.source
    per_machine = source.host.per_machine if source and source.host else None
    name = host_name(problem)

    def pool(what: str, cores: int, paid: int, load: float | None) -> RentedPool:
        return RentedPool(what, name, cores, paid, per_machine, paid * host.usd_per_hour, load)

    if plan.servers:
        paid = sum(-(-stage.servers // host.unit) * host.unit for stage in plan.stages)
        needs = [server_needs(plan, stage) for stage in plan.stages if stage.servers]
        yield pool("servers", plan.servers, paid, UTILISATION * sum(one.nic for one in needs) / plan.servers)
    if plan.readers:
        paid = -(-plan.readers // host.unit) * host.unit
        yield pool("readers", plan.readers, paid, _reader_load(plan))


def host_name(problem: Problem) -> str:
    """Return the type of the cores that run servers and readers."""
    source = problem.source
    return source.host.device.name if source and source.host else "cpu-core"


def _reader_load(plan: Plan) -> float | None:
    source = plan.problem.source
    if source is None or source.host is None:
        return None
    profile = source.profile
    bytes_per_s = profile.layers[0].input_bytes / profile.batch * plan.throughput
    return bytes_per_s / (plan.readers * source.host.nic_bytes_per_s)


def examples_per_call(plan: Plan, stage: Stage) -> float:
    """Return the examples of one call of a replica; async: its whole batch."""
    source = plan.problem.source
    if source is not None and source.options.mode != SYNC:
        return plan.problem.batch
    return plan.problem.batch / (stage.replicas * plan.micro)


def nic_load(plan: Plan, stage: Stage) -> float:
    """Return the share of its devices' NICs that a stage uses at the plan's throughput, in the busier direction."""
    source, problem = plan.problem.source, plan.problem
    assert source is not None
    rented = source.rented[problem.type_index(stage.type_name)]
    profile, layers = source.profile, len(problem.layers)
    call = examples_per_call(plan, stage)
    into = profile.layers[0].input_bytes / profile.batch if stage.first == 0 else 0.0
    out = 0.0
    for layer in profile.layers[stage.first : stage.last + 1]:
        if layer.touched_bytes and stage.tables != MACHINE:
            rows = layer.touched_rows(call, profile.batch) / call
            each = layer.row_bytes + KEY_BYTES
            into += rows * each * (1 if stage.servers else 2)
            out += rows * (each + KEY_BYTES if stage.servers else 2 * each)
        if source.options.mode != SYNC:
            into += layer.dense_bytes / call
            out += layer.dense_bytes / call
    cross = problem.cross[stage.choice] * rented.nic_bytes_per_s
    if stage.first > 0:
        into, out = into + cross[stage.first - 1, 0], out + cross[stage.first - 1, 1]
    if stage.last + 1 < layers:
        into, out = into + cross[stage.last, 1], out + cross[stage.last, 0]
    if stage.replicas > rented.per_machine and source.options.mode == SYNC:
        # Among n machines an all-reduce moves 2 (n - 1) / n of the gradients through each machine's NIC, per step.
        machines = math.ceil(stage.replicas / rented.per_machine)
        dense = float(problem.facts[stage.choice, stage.first : stage.last + 1, SYNC_BYTES].sum())
        ring = 2 * (machines - 1) / machines * dense * machines / problem.batch
        into, out = into + ring, out + ring
    return max(into, out) * plan.throughput / (stage.replicas * rented.nic_bytes_per_s)


def server_needs(plan: Plan, stage: Stage) -> ServerNeeds:
    """Return the server cores of a stage by lookups, by NIC and by memory."""
    problem = plan.problem
    layers = slice(stage.first, stage.last + 1)
    calls = stage.replicas * plan.micro
    examples = problem.batch / calls
    step_s = problem.batch / (plan.throughput or problem.throughput)

    def cores(which: int) -> float:
        at_grid = problem.curves[stage.choice, layers, which].sum(axis=0)
        return calls * float(along(problem.grid, at_grid, examples)) / step_s

    held = float(problem.facts[stage.choice, layers, SERVED_BYTES].sum())
    return ServerNeeds(cores(SERVER_CPU), cores(SERVER_NIC), held / problem.host.memory_bytes, held)


def table_bytes(plan: Plan, stage: Stage) -> float:
    """Return the bytes of the stage's tables in the memory of its devices."""
    layers = slice(stage.first, stage.last + 1)
    return float(plan.problem.facts[stage.choice, layers, SHARDED_BYTES].sum())


def cost_per_billion(plan: Plan) -> float:
    """Return the dollars per billion examples."""
    return plan.usd_per_hour * plan.stage_s * BILLION / 3600


def throughput_range(plan: Plan) -> tuple[float, float] | None:
    """Return the throughput if every device is slower, or faster, by the uncertainty of its times."""
    if plan.problem.source is None:
        return None
    spread = uncertainties(plan.problem)
    found = []
    for sign in (1, -1):
        factors = {name: max(1 + sign * share, 0.05) for name, share in spread.items()}
        changed = with_times_scaled(plan.problem, factors)
        counts = [stage.replicas for stage in plan.stages]
        servers = [stage.servers for stage in plan.stages]
        found.append(with_counts(changed, plan.schedule, plan.cuts, counts, servers, plan.readers).throughput)
    return found[0], found[1]


def uncertainties(problem: Problem) -> dict[str, float]:
    """Return the uncertainty of each type's times, as a share; empty for a stated problem."""
    if problem.source is None:
        return {}
    return {one.name: problem.source.profile.on(one).uncertainty for one in problem.source.devices}


def with_times_scaled(problem: Problem, factors: Mapping[str, float]) -> Problem:
    """Return the problem with the times of computing on some types, by name, multiplied."""
    factor = np.array([factors.get(problem.types[one.device].name, 1.0) for one in problem.choices])
    curves, facts = problem.curves.copy(), problem.facts.copy()
    curves[:, :, COMPUTE] *= factor[:, None, None]
    facts[:, :, OPTIMISER_S] *= factor[:, None]
    return replace(problem, curves=curves, facts=facts)
