"""A plan: stages with replicas, their servers, the readers, and the resulting throughput and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.plan.problem import (
    EXAMPLE_BYTES,
    HELD_BYTES,
    OPTIMISER_S,
    SERVED_BYTES,
    SHARDED_BYTES,
    UNLIMITED,
    DevicePool,
    Problem,
    Schedule,
    pipelined,
)

_SLACK = 2e-9  # throughputs that agree to nine digits are equal
Cut = tuple[int, int, int]  # first layer, last layer, choice


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of layers on replicas of one device type, with the servers of its tables. Times are per example."""

    type_name: str
    first: int
    last: int
    choice: int
    replicas: int
    servers: int  # cores
    tables: str  # where its tables are: servers, disk, machine, replicas; empty without tables
    time_s: float
    compute_s: float
    in_s: float  # what comes in over the NIC
    out_s: float
    sync_s: float  # all-reduce of dense gradients
    optimiser_s: float  # with the loop around the model
    server_s: float  # of its server cores
    min_replicas: int  # for the stage to fit into memory

    @property
    def data_s(self) -> float:
        """What moves over the NIC, in the busier direction."""
        return max(self.in_s, self.out_s)


@dataclass(frozen=True, eq=False)
class Plan:
    """Sized stages, evaluated on their problem."""

    problem: Problem
    schedule: Schedule
    stages: tuple[Stage, ...]
    readers: int = 0  # cores

    @property
    def micro(self) -> int:
        """Micro-batches of one step."""
        return self.schedule.micro

    @property
    def reader_s(self) -> float:
        """Time per example at the readers."""
        host = self.problem.host
        return host.readers_s / self.readers / self.problem.batch if self.readers else 0.0

    @property
    def stage_s(self) -> float:
        """Time per example at the bottleneck."""
        return max(self.reader_s, *(stage.time_s for stage in self.stages))

    @property
    def bottleneck(self) -> int:
        """Index of the slowest stage."""
        return max(range(len(self.stages)), key=lambda row: self.stages[row].time_s)

    @property
    def throughput(self) -> float:
        """Examples per second."""
        return 1.0 / self.stage_s

    @property
    def servers(self) -> int:
        """Server cores of all stages."""
        return sum(stage.servers for stage in self.stages)

    @property
    def worker_counts(self) -> dict[str, int]:
        """Devices of each type that run stages."""
        total: dict[str, int] = {}
        for stage in self.stages:
            total[stage.type_name] = total.get(stage.type_name, 0) + stage.replicas
        return total

    @property
    def host_cores(self) -> int:
        """Cores rented for servers and readers."""
        unit = self.problem.host.unit
        pools = [*(stage.servers for stage in self.stages), self.readers]
        return sum(_rented(cores, unit) for cores in pools)

    @property
    def device_counts(self) -> dict[str, int]:
        """Devices of each type that are rented, servers and readers included."""
        total: dict[str, int] = {}
        units = {one.name: one.unit for one in self.problem.types}
        for stage in self.stages:
            count = _rented(stage.replicas, units[stage.type_name])
            total[stage.type_name] = total.get(stage.type_name, 0) + count
        host = self.problem.host.device
        if host >= 0 and self.host_cores:
            name = self.problem.types[host].name
            total[name] = total.get(name, 0) + self.host_cores
        return total

    @property
    def usd_per_hour(self) -> float:
        """Price of everything that is rented, with the fixed price."""
        price = {one.name: one.usd_per_hour for one in self.problem.types}
        devices = sum(price[name] * count for name, count in self.device_counts.items())
        if self.problem.host.device < 0:
            devices += self.problem.host.usd_per_hour * self.host_cores
        return self.problem.fixed_usd_per_hour + devices

    @property
    def hours(self) -> float:
        """Duration of the whole training."""
        return self.problem.epochs * self.problem.samples * self.stage_s / 3600

    @property
    def cost_usd(self) -> float:
        """Cost of the whole training."""
        return self.hours * self.usd_per_hour

    @property
    def assignment(self) -> tuple[int, ...]:
        """Index of each layer's device type."""
        types = [self.problem.type_index(stage.type_name) for stage in self.stages]
        return tuple(
            device
            for device, stage in zip(types, self.stages, strict=True)
            for _ in range(stage.first, stage.last + 1)
        )

    @property
    def cuts(self) -> list[Cut]:
        """The stages as (first layer, last layer, choice)."""
        return [(stage.first, stage.last, stage.choice) for stage in self.stages]

    @property
    def types_of_layers(self) -> tuple[str, ...]:
        """Name of each layer's device type."""
        return tuple(self.problem.type_names[device] for device in self.assignment)

    @property
    def is_too_slow(self) -> bool:
        """Whether the plan misses the problem's throughput."""
        return self.throughput < self.problem.throughput * (1 - _SLACK)

    @property
    def over_limit(self) -> list[DevicePool]:
        """The types of which the plan uses more devices than there are."""
        return [one for one in self.problem.types if self.device_counts.get(one.name, 0) > one.limit]

    def violations(self) -> list[str]:
        """Return what the plan violates: throughput, limits, memory, forbidden types. Empty if it is feasible."""
        problem, found = self.problem, []
        if self.is_too_slow:
            found.append(
                f"throughput {self.throughput:,.6g}/s is below the {problem.throughput:,.6g}/s wanted"
            )
        found += [
            f"{self.device_counts[one.name]} {one.name} are used, the limit is {one.limit}"
            for one in self.over_limit
        ]
        for stage in self.stages:
            cap = min(problem.max_replicas, problem.choices[stage.choice].cap if stage.tables else UNLIMITED)
            if stage.replicas < stage.min_replicas:
                found.append(
                    f"the stage on {stage.type_name} needs {stage.min_replicas} replicas for its memory"
                )
            if stage.replicas > cap:
                found.append(f"the stage on {stage.type_name} may have {cap} replicas at most")
            served = float(problem.facts[stage.choice, stage.first : stage.last + 1, SERVED_BYTES].sum())
            if stage.servers < math.ceil(served / problem.host.memory_bytes * (1 - _SLACK)):
                found.append(
                    f"the tables of the stage on {stage.type_name} need more servers for their memory"
                )
        for layer, device in enumerate(self.assignment):
            if not problem.allowed[layer, device]:
                found.append(f"layer {problem.layers[layer]!r} may not run on {problem.type_names[device]}")
        return found


def schedule_for(problem: Problem, stages: int, micro: int) -> Schedule:
    """Return the schedule of a plan with this many stages and micro-batches."""
    return pipelined(micro, stages, stages) if problem.micro else problem.schedules(stages)[0]


def cheapest(problem: Problem, assignment: Sequence[int] | Any) -> Plan | None:
    """Return the cheapest plan found with these device types of the layers; None if it can't hold the throughput."""
    from berth.plan.provision import provisioned

    devices = np.asarray(assignment, dtype=np.int64)
    schedules = candidate_schedules(problem)
    table = schedule_table(schedules)
    best, found = np.inf, None
    for one, rows in table_places(problem):
        cost, number, step_s, cuts = provisioned(devices, one.arrays, table)
        if cost < best:
            best, found = cost, (number, [(int(a), int(b), rows[c]) for a, b, c in cuts], step_s)
    if found is None:
        return None
    return plan_at(problem, schedules[found[0]], found[1], found[2])


def table_places(problem: Problem) -> list[tuple[Problem, Sequence[int]]]:
    """Return the problem, and as it is with all tables in one place, each with the rows of its choices.

    At a long step the cheapest stages often keep their tables elsewhere than the cheapest plan, which is much faster:
    each place is tried by itself.
    """
    places = problem.by_place()
    return [(problem, range(len(problem.choices))), *(places if len(places) > 1 else ())]


def candidate_schedules(problem: Problem) -> tuple[Schedule, ...]:
    """Return all schedules of plans with up to as many stages as layers."""
    if not problem.micro:
        return problem.schedules(0)
    return tuple(one for stages in range(1, len(problem.layers) + 1) for one in problem.schedules(stages))


def schedule_table(schedules: Sequence[Schedule]) -> Any:
    """Return schedules as the kernels read them."""
    return np.array(
        [(one.micro, one.stages, one.w_max, one.w_sum, one.in_flight) for one in schedules], float
    )


def plan_at(problem: Problem, schedule: Schedule, cuts: Sequence[Cut], step_s: float) -> Plan:
    """Return the plan with these stages, sized for a step time."""
    from berth.plan.provision import sized_at

    stages = np.array(cuts, np.int64)
    schedule = schedule_for(problem, len(cuts), schedule.micro)
    _, _, sized = sized_at(problem.arrays, slots_of(schedule), stages, step_s)
    host = problem.host
    readers = max(1, math.ceil(host.readers_s / step_s * (1 - 1e-9))) if host.readers_s > 0 else 0
    return with_counts(problem, schedule, cuts, sized[:, 0], sized[:, 1], readers)


def with_counts(
    problem: Problem,
    schedule: Schedule,
    cuts: Sequence[Cut],
    replicas: Sequence[float] | Any,
    servers: Sequence[float] | Any | None = None,
    readers: int | None = None,
) -> Plan:
    """Return the plan with the given counts; it may be infeasible. Servers and readers default to what it needs."""
    from berth.plan.provision import stage_parts
    from berth.plan.stage import SLACK

    rows = np.array(cuts, np.int64)
    counts = np.asarray(replicas, float)
    parts = stage_parts(problem.arrays, slots_of(schedule), rows, counts)
    wanted_s = max(problem.batch / problem.throughput, float(parts[:, 0].max()))
    if servers is None:
        held = [problem.facts[choice, first : last + 1, SERVED_BYTES].sum() for first, last, choice in cuts]
        servers = [
            max(1, math.ceil(max(load / wanted_s, bytes_ / problem.host.memory_bytes) * (1 - SLACK)))
            if bytes_ > 0
            else 0
            for load, bytes_ in zip(parts[:, 5], held, strict=True)
        ]
    stages = [
        _stage(problem, schedule, cut, int(count), int(cores), part)
        for cut, count, cores, part in zip(cuts, counts, servers, parts, strict=True)
    ]
    if readers is None:  # as many as the stages keep busy
        reading, own_s = problem.host.readers_s, max(stage.time_s for stage in stages) * problem.batch
        enough = reading / own_s if math.isfinite(own_s) else 1.0
        readers = max(1, math.ceil(enough * (1 - SLACK))) if reading > 0 else 0
    return Plan(problem, schedule, tuple(stages), int(readers))


def slots_of(schedule: Schedule) -> Any:
    """Return a schedule as the kernels read it."""
    from berth.plan.stage import Slots

    return Slots(
        float(schedule.micro), schedule.stages, schedule.w_max, schedule.w_sum, float(schedule.in_flight)
    )


def _stage(problem: Problem, schedule: Schedule, cut: Cut, replicas: int, servers: int, part: Any) -> Stage:
    first, last, choice = cut
    facts = problem.facts[choice, first : last + 1].sum(axis=0)
    step_s, compute, into, out, ring, load = (float(value) for value in part)
    server_s = load / servers if servers else (math.inf if facts[SERVED_BYTES] > 0 else 0.0)
    each = schedule.micro / problem.batch
    place = problem.choices[choice]
    has_tables = bool(facts[SERVED_BYTES] > 0 or (place.tables and facts[SHARDED_BYTES] > 0))
    return Stage(
        type_name=problem.type_names[place.device],
        first=first,
        last=last,
        choice=choice,
        replicas=replicas,
        servers=servers,
        tables=place.tables if has_tables else "",
        time_s=max(step_s, server_s) / problem.batch,
        compute_s=compute * each,
        in_s=into * each,
        out_s=out * each,
        sync_s=ring / problem.batch,
        optimiser_s=(float(facts[OPTIMISER_S]) + problem.loop_s) / problem.batch,
        server_s=server_s / problem.batch,
        min_replicas=_min_replicas(problem, schedule, facts, place.device),
    )


def _min_replicas(problem: Problem, schedule: Schedule, facts: Any, device: int) -> int:
    memory = problem.types[device].memory_bytes
    in_flight = facts[EXAMPLE_BYTES] * problem.batch * schedule.in_flight / schedule.micro
    held, divided = facts[HELD_BYTES], facts[SHARDED_BYTES] + in_flight
    if memory is None or held + divided <= memory:
        return 1
    return int(1e18) if held >= memory else math.ceil(divided / (memory - held) * (1 - 1e-9))


def _rented(count: int, unit: int) -> int:
    return -(-count // unit) * unit
