"""Why a stage is as it is: what limits it, where its tables are, how many replicas and servers it has."""

from __future__ import annotations

import math
from collections.abc import Iterator

from berth.plan.plan import Plan, Stage
from berth.plan.problem import HAS_TABLES, UNLIMITED, Problem
from berth.plan.rental import host_name, server_needs, table_bytes
from berth.plan.world import ASYNC, DISK, MACHINE, REPLICAS, SERVERS
from berth.units import format_bytes, format_count

_WAITS = 0.9  # a stage that takes less than this share of the time of its servers or readers waits for them
_SAME = 1e-9


def limited_by(plan: Plan) -> str:
    """Return what limits the bottleneck: compute, data, all-reduce or servers."""
    return limit_of(plan, plan.stages[slowest(plan)])


def limit_of(plan: Plan, stage: Stage) -> str:
    """Return what takes longest in a stage; servers only if the stage waits for them."""
    if own_s(plan, stage) < _WAITS * stage.server_s:
        return "servers"
    parts = {"compute": stage.compute_s + stage.optimiser_s, "data": stage.data_s, "all-reduce": stage.sync_s}
    return max(parts, key=lambda part: parts[part])


def slowest(plan: Plan) -> int:
    """Return the index of the stage that takes longest, apart from what servers and readers are rounded to."""
    waits = [
        stage.server_s if limit_of(plan, stage) == "servers" else own_s(plan, stage) for stage in plan.stages
    ]
    return max(range(len(waits)), key=lambda row: waits[row])


def readers_bind(plan: Plan) -> bool:
    """Return whether the stages wait for the readers."""
    return max(stage.time_s for stage in plan.stages) < _WAITS * plan.reader_s


def own_s(plan: Plan, stage: Stage) -> float:
    """Return the seconds per example of a stage without its servers, which are sized to keep up with it."""
    one = plan.schedule
    calls = one.w_max * max(stage.compute_s, stage.data_s) + one.w_sum * (
        stage.compute_s + stage.in_s + stage.out_s
    )
    return calls / one.micro + stage.optimiser_s + stage.sync_s


def device_mix(plan: Plan) -> str:
    """Return the devices of a plan in the order of its stages, cores of servers and readers included."""
    counts = dict(plan.device_counts)
    if plan.problem.host.device < 0 and plan.host_cores:
        counts[host_name(plan.problem)] = plan.host_cores
    return " + ".join(f"{count} {name}" for name, count in counts.items())


def layer_range(problem: Problem, first: int, last: int) -> str:
    """Return `embedding .. pooling`, or the name of a single layer."""
    names = problem.layers
    return names[first] if first == last else f"{names[first]} .. {names[last]}"


def stage_reason(plan: Plan, row: int) -> str:
    """Return in one line why a stage has this place for its tables and this many replicas."""
    stage = plan.stages[row]
    parts = [*_tables_reason(plan, stage), *_count_reason(plan, stage), _time_reason(plan, stage)]
    return "; ".join(parts)


def _tables_reason(plan: Plan, stage: Stage) -> Iterator[str]:
    memory = plan.problem.types[plan.problem.type_index(stage.type_name)].memory_bytes
    if stage.tables in (MACHINE, REPLICAS):
        fit = f" fit into {stage.replicas} x {format_bytes(memory)}" if memory else " are in its memory"
        way = "rows stay inside one machine" if stage.tables == MACHINE else "rows move over the NICs"
        yield f"tables of {format_bytes(table_bytes(plan, stage))}{fit}, {way}"
    if stage.servers:
        needs, held = server_needs(plan, stage), _held_by_servers(plan, stage)
        yield (
            f"{held} of {format_bytes(needs.bytes)} on {format_count(stage.servers, 'server core')}: "
            f"{_cores(needs.lookups)} by lookups, {_cores(needs.nic)} by NIC, {_cores(needs.memory)} by memory"
        )


def _held_by_servers(plan: Plan, stage: Stage) -> str:
    problem = plan.problem
    tables = "the tables' hot rows" if stage.tables == DISK else "tables"
    if problem.source is None or problem.source.options.mode != ASYNC:
        return tables
    own = problem.facts[stage.choice, stage.first : stage.last + 1, HAS_TABLES].any()
    on_servers = own and stage.tables in (SERVERS, DISK)
    return f"{tables} and dense parameters" if on_servers else "dense parameters"


def _cores(needed: float) -> int:
    return math.ceil(needed * (1 - _SAME))


def replica_cap(problem: Problem, stage: Stage) -> int:
    """Return the most replicas that a stage may have: by the staleness, and by the devices of a machine."""
    return min(problem.max_replicas, problem.choices[stage.choice].cap if stage.tables else UNLIMITED)


def _count_reason(plan: Plan, stage: Stage) -> Iterator[str]:
    cap = replica_cap(plan.problem, stage)
    if stage.replicas == stage.min_replicas > 1:
        yield f"{stage.replicas} is the least that its memory needs"
    elif stage.replicas == cap == plan.problem.max_replicas:
        yield f"the staleness allows no more than {cap}"
    elif stage.replicas == cap:
        yield f"a machine has no more than {cap}"


def _time_reason(plan: Plan, stage: Stage) -> str:
    """Return what takes longest, and the shares of a step: of computation and of data, which may overlap."""
    shares = {
        "compute": stage.compute_s + stage.optimiser_s,
        "data in": stage.in_s,
        "data out": stage.out_s,
        "all-reduce": stage.sync_s,
    }
    taken = [f"{part} {s / plan.stage_s:.0%}" for part, s in shares.items() if s >= 0.005 * plan.stage_s]
    return f"limited by {limit_of(plan, stage)} ({', '.join(taken)} of a step)"
