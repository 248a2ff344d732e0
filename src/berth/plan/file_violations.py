"""What a plan of a file violates, with the position of what is wrong, and how many would be enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from berth import units as quantities
from berth.plan.files import REPLICAS
from berth.plan.plan import Plan, with_counts
from berth.plan.rental import server_needs
from berth.plan.stage_reasons import replica_cap
from berth.spec import locate

CLOSE = 1e-6  # relative difference up to which a stored figure counts as unchanged


@dataclass(frozen=True)
class Positions:
    """Positions of values in the file."""

    text: str
    where: str

    def at(self, *path: int | str) -> str:
        """Return the position of a value as file:line:column."""
        line, column = locate(self.text, path)
        return f"{self.where}:{line}:{column}"


def violations(plan: Plan, positions: Positions) -> Iterator[tuple[str, str]]:
    """Yield each violation as (file:line:column, what)."""
    problem = plan.problem
    if plan.is_too_slow:
        yield _too_slow(plan, positions)
    if problem.host.readers_s > 0 and not plan.readers:
        least = math.ceil(problem.host.readers_s / _step_s(plan) * (1 - CLOSE))
        yield positions.at("readers"), f"the plan has no readers; it takes {least}"
    for one in plan.over_limit:
        users = [row for row, stage in enumerate(plan.stages) if stage.type_name == one.name]
        what = f"{plan.device_counts[one.name]} {one.name} are used, the limit is {one.limit}"
        yield positions.at("stages", users[-1], *REPLICAS) if users else positions.at("stages"), what
    for row, stage in enumerate(plan.stages):
        yield from ((positions.at("stages", row, *keys), what) for keys, what in _of_stage(plan, row))
        for layer in range(stage.first, stage.last + 1):
            if not problem.allowed[layer, plan.assignment[layer]]:
                what = f"layer {problem.layers[layer]!r} may not run on {stage.type_name}"
                yield positions.at("stages", row, "type"), what


def _of_stage(plan: Plan, row: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what the counts of a stage violate, with the key that is wrong."""
    stage, problem = plan.stages[row], plan.problem
    cap = replica_cap(problem, stage)
    if stage.replicas < stage.min_replicas:
        least = f"{stage.min_replicas} replicas" if stage.min_replicas < 10**9 else "another type"
        yield REPLICAS, f"stage {row + 1} needs {least} for its memory"
    if stage.replicas > cap:
        why = (
            "the staleness allows no more"
            if cap == problem.max_replicas
            else "one machine has no more devices"
        )
        yield REPLICAS, f"stage {row + 1} may have {cap} replicas at most: {why}"
    held = server_needs(plan, stage)
    least_cores = math.ceil(held.memory * (1 - CLOSE))
    if stage.servers < least_cores:
        yield (
            ("servers",),
            f"stage {row + 1} needs {quantities.format_count(least_cores, 'server core')} for the memory of its tables",
        )
    if stage.servers and not held.bytes:
        yield ("servers",), f"stage {row + 1} has nothing on servers"


def _too_slow(plan: Plan, positions: Positions) -> tuple[str, str]:
    """Return what is slowest, its position, and how many would be enough."""
    wanted = f"below the {quantities.format_rate(plan.problem.throughput)} wanted"
    fast = quantities.format_rate(plan.throughput)
    if plan.reader_s >= plan.stage_s:
        needed = math.ceil(plan.problem.host.readers_s / _step_s(plan) * (1 - CLOSE))
        what = (
            f"{quantities.format_count(plan.readers, 'reader core')} hold {fast}, {wanted}; it takes {needed}"
        )
        return positions.at("readers"), what
    row = plan.bottleneck
    stage = plan.stages[row]
    what = f"stage {row + 1} holds {fast}, {wanted}"
    if stage.server_s >= stage.time_s:
        if stage.servers:
            enough = math.ceil(stage.server_s * stage.servers * plan.problem.throughput * (1 - CLOSE))
            what += f"; it needs {enough} server cores, not {stage.servers}"
        else:
            what += "; it has no servers"
        return positions.at("stages", row, "servers"), what
    return positions.at("stages", row, *REPLICAS), what + _replicas_needed(plan)


def _step_s(plan: Plan) -> float:
    return plan.problem.batch / plan.problem.throughput


def _replicas_needed(plan: Plan) -> str:
    """Return how many replicas the bottleneck needs, if a thousand times as many are enough."""
    row = plan.bottleneck
    stage, tau = plan.stages[row], 1 / plan.problem.throughput

    def holds(replicas: int) -> bool:
        counts = [replicas if at == row else one.replicas for at, one in enumerate(plan.stages)]
        changed = with_counts(plan.problem, plan.schedule, plan.cuts, counts).stages[row]
        return changed.time_s <= tau * (1 + 1e-9)

    low, high = stage.replicas, 2 * stage.replicas
    while not holds(high):
        if high > 1000 * stage.replicas:
            return "; no number of replicas is enough"
        low, high = high, 2 * high
    while high > low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return f"; it needs {high} replicas"
