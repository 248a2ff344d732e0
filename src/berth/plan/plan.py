"""A plan: a type for every layer, whole units for every stage, and what that gives and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.plan.problem import Problem
from berth.plan.provision import CP, CS, DP, DS, LAST, LEAST, TYPE


@dataclass(frozen=True, slots=True)
class Stage:
    """A maximal run of layers on one type, and its times per example with the units it has."""

    type_name: str
    first: int
    last: int
    units: int
    compute_s: float
    data_s: float
    serial_s: float  # what no number of units takes away
    least_units: int  # memory needs as many

    @property
    def time_s(self) -> float:
        """Computation and communication overlap."""
        return max(self.compute_s, self.data_s)

    @property
    def limited_by(self) -> str:
        """What the stage's time consists of."""
        return "compute" if self.compute_s >= self.data_s else "data"


@dataclass(frozen=True, eq=False)
class Plan:
    """An assignment with its units, evaluated on its problem."""

    problem: Problem
    assignment: tuple[int, ...]
    stages: tuple[Stage, ...]

    @property
    def stage_s(self) -> float:
        """Time per example at the bottleneck."""
        return max(stage.time_s for stage in self.stages)

    @property
    def bottleneck(self) -> int:
        """The slowest stage."""
        return max(range(len(self.stages)), key=lambda row: self.stages[row].time_s)

    @property
    def throughput(self) -> float:
        """Examples per second."""
        return 1.0 / self.stage_s

    @property
    def units(self) -> dict[str, int]:
        """Units of each type in use, summed over its stages."""
        total: dict[str, int] = {}
        for stage in self.stages:
            total[stage.type_name] = total.get(stage.type_name, 0) + stage.units
        return total

    @property
    def usd_per_hour(self) -> float:
        """Price of all units and of what is fixed."""
        price = {one.name: one.usd_per_hour for one in self.problem.types}
        return self.problem.fixed_usd_per_hour + sum(
            price[name] * units for name, units in self.units.items()
        )

    @property
    def hours(self) -> float:
        """How long the whole training takes."""
        return self.problem.epochs * self.problem.samples * self.stage_s / 3600

    @property
    def cost_usd(self) -> float:
        """What the whole training costs."""
        return self.hours * self.usd_per_hour

    @property
    def types_of_layers(self) -> tuple[str, ...]:
        """The type of each layer, by name."""
        return tuple(self.problem.type_names[kind] for kind in self.assignment)

    def violations(self) -> list[str]:
        """What the plan breaks: throughput, limits, memory, forbidden places. Empty if it is feasible."""
        problem, found = self.problem, []
        if self.throughput < problem.throughput * (1 - 2e-9):
            found.append(
                f"throughput {self.throughput:,.6g}/s is below the {problem.throughput:,.6g}/s wanted"
            )
        found += [
            f"{self.units[one.name]} units of {one.name}, and there are {one.limit}"
            for one in problem.types
            if self.units.get(one.name, 0) > one.limit
        ]
        found += [
            f"the stage on {stage.type_name} needs {stage.least_units} units for its memory"
            for stage in self.stages
            if stage.units < stage.least_units
        ]
        for layer, kind in enumerate(self.assignment):
            if not problem.allowed[layer, kind]:
                found.append(f"layer {problem.layers[layer]!r} may not run on {problem.type_names[kind]}")
        return found


def cheapest(problem: Problem, assignment: Sequence[int] | Any) -> Plan | None:
    """The assignment with its cheapest units; None if it can't hold the throughput."""
    from berth.plan.evaluate import provisioned

    kinds = np.asarray(assignment, dtype=np.int64)
    cost, _, stages, units = provisioned(kinds, problem.tables)
    if not np.isfinite(cost):
        return None
    return _plan(problem, kinds, stages, units)


def with_units(problem: Problem, assignment: Sequence[int] | Any, units: Sequence[int]) -> Plan:
    """The assignment with units given by hand, one number per stage; it may well be infeasible."""
    from berth.plan.evaluate import cut_stages

    kinds = np.asarray(assignment, dtype=np.int64)
    return _plan(problem, kinds, cut_stages(kinds, problem.tables), np.asarray(units, float))


def _plan(problem: Problem, kinds: Any, rows: Any, units: Any) -> Plan:
    stages, first = [], 0
    for row, count in zip(rows, units, strict=True):
        last = int(row[LAST])
        compute, data = row[CS] + row[CP] / count, row[DS] + row[DP] / count
        least = int(min(row[LEAST], 1e18))
        name = problem.type_names[int(row[TYPE])]
        serial = float(max(row[CS], row[DS]))
        stages.append(Stage(name, first, last, int(count), float(compute), float(data), serial, least))
        first = last + 1
    return Plan(problem, tuple(int(kind) for kind in kinds), tuple(stages))
