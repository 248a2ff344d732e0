"""A plan: a device type for every layer, replicas for every stage, and the resulting throughput and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from berth.plan.problem import DevicePool, Problem
from berth.plan.provision import CP, CS, DP, DS, LAST, LEAST, TYPE

_SLACK = 2e-9  # throughputs that agree to nine digits are equal


@dataclass(frozen=True, slots=True)
class Stage:
    """A maximal run of layers on one device type, and its times per example with its replicas."""

    type_name: str
    first: int
    last: int
    replicas: int
    compute_s: float
    data_s: float
    serial_s: float  # the part that no number of replicas removes
    min_replicas: int  # for the stage to fit into memory

    @property
    def time_s(self) -> float:
        """Time per example; computation and communication overlap."""
        return max(self.compute_s, self.data_s)

    @property
    def limited_by(self) -> str:
        """Which of the two takes longer: `compute` or `data`."""
        return "compute" if self.compute_s >= self.data_s else "data"


@dataclass(frozen=True, eq=False)
class Plan:
    """An assignment with its replicas, evaluated on its problem."""

    problem: Problem
    assignment: tuple[int, ...]
    stages: tuple[Stage, ...]

    @property
    def stage_s(self) -> float:
        """Time per example at the bottleneck."""
        return max(stage.time_s for stage in self.stages)

    @property
    def bottleneck(self) -> int:
        """Index of the slowest stage."""
        return max(range(len(self.stages)), key=lambda row: self.stages[row].time_s)

    @property
    def throughput(self) -> float:
        """Examples per second."""
        return 1.0 / self.stage_s

    @property
    def device_counts(self) -> dict[str, int]:
        """Devices of each type in use, summed over its stages."""
        total: dict[str, int] = {}
        for stage in self.stages:
            total[stage.type_name] = total.get(stage.type_name, 0) + stage.replicas
        return total

    @property
    def usd_per_hour(self) -> float:
        """Price of all devices, with the fixed price."""
        price = {one.name: one.usd_per_hour for one in self.problem.types}
        return self.problem.fixed_usd_per_hour + sum(
            price[name] * count for name, count in self.device_counts.items()
        )

    @property
    def hours(self) -> float:
        """Duration of the whole training."""
        return self.problem.epochs * self.problem.samples * self.stage_s / 3600

    @property
    def cost_usd(self) -> float:
        """Cost of the whole training."""
        return self.hours * self.usd_per_hour

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
        found += [
            f"the stage on {stage.type_name} needs {stage.min_replicas} replicas for its memory"
            for stage in self.stages
            if stage.replicas < stage.min_replicas
        ]
        for layer, device in enumerate(self.assignment):
            if not problem.allowed[layer, device]:
                found.append(f"layer {problem.layers[layer]!r} may not run on {problem.type_names[device]}")
        return found


def cheapest(problem: Problem, assignment: Sequence[int] | Any) -> Plan | None:
    """Return the assignment with its cheapest replicas; None if it can't hold the throughput."""
    from berth.plan.evaluate import provisioned

    devices = np.asarray(assignment, dtype=np.int64)
    cost, _, stages, replicas = provisioned(devices, problem.arrays)
    if not np.isfinite(cost):
        return None
    return _plan(problem, devices, stages, replicas)


def with_replicas(problem: Problem, assignment: Sequence[int] | Any, replicas: Sequence[int]) -> Plan:
    """Return the assignment with the given replicas, one number per stage; it may be infeasible."""
    from berth.plan.evaluate import stage_rows

    devices = np.asarray(assignment, dtype=np.int64)
    return _plan(problem, devices, stage_rows(devices, problem.arrays), np.asarray(replicas, float))


def _plan(problem: Problem, devices: Any, rows: Any, replicas: Any) -> Plan:
    stages, first = [], 0
    for row, count in zip(rows, replicas, strict=True):
        last = int(row[LAST])
        compute, data = row[CS] + row[CP] / count, row[DS] + row[DP] / count
        least = int(min(row[LEAST], 1e18))
        name = problem.type_names[int(row[TYPE])]
        serial = float(max(row[CS], row[DS]))
        stages.append(Stage(name, first, last, int(count), float(compute), float(data), serial, least))
        first = last + 1
    return Plan(problem, tuple(int(device) for device in devices), tuple(stages))
