"""Provisioning by a fixed ratio: both pools grow together until the throughput holds, instead of each by its need.

- static-cpu-gpu: layers with tables on CPU cores, the others on one GPU type, six cores for each GPU.
- static-servers: all layers on workers of one type, tables on servers: one server core for each CPU core that works,
  six for each GPU.

Six cores are those that a rented machine with 8 GPUs and 48 cores has for each GPU; both ratios are our choice. All
else (the GPU type, micro-batches, the place of the tables in static-cpu-gpu, readers) is the cheapest that holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product

import numpy as np

from berth.plan.plan import Cut, Plan, with_counts
from berth.plan.problem import HAS_TABLES, SERVED_BYTES, Problem, Schedule
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.fixed import cpu_types, is_data_heavy
from berth.plan.search.method import Budget, Method, Outcome, Progress, Search
from berth.plan.world import DISK, SERVERS

CORES_PER_GPU = 6
SERVERS_PER_CORE = 1
_GROWTH = 1.25  # of both pools, until the throughput holds


@dataclass(frozen=True, slots=True)
class _Layout:
    """Stages, and how many replicas and server cores each has per unit of scale; None: the servers it needs."""

    schedule: Schedule
    cuts: tuple[Cut, ...]
    replicas: tuple[int, ...]
    servers: tuple[int, ...] | None

    def sized(self, problem: Problem, scale: int) -> Plan:
        """Return the plan at a scale."""
        counts = [scale * each for each in self.replicas]
        servers = None if self.servers is None else [scale * each for each in self.servers]
        return with_counts(problem, self.schedule, self.cuts, counts, servers)


def _static(name: str, problem: Problem, budget: Budget, progress: Progress | None = None) -> Outcome:
    search = Search(problem, budget, progress)
    if AssignmentSpace(problem, np.random.default_rng(budget.seed)).is_empty:
        return search.no_placement(name)
    cpus, note = cpu_types(problem)
    gpus = [device for device in range(len(problem.types)) if device not in cpus]
    started, tried = time.process_time(), 0
    best: Plan | None = None
    curve: list[tuple[int, float]] = []
    for layout in _LAYOUTS[name](problem, cpus, gpus):
        if tried >= budget.evaluations or time.process_time() - started >= budget.seconds:
            break
        tried += 1
        plan = _smallest(problem, layout)
        if plan is not None and (best is None or plan.cost_usd < best.cost_usd):
            best = plan
            curve.append((tried, plan.cost_usd))
    if best is None:
        note = "; ".join(filter(None, [note, _why_none(name, problem, cpus, gpus, tried)]))
    else:
        note = "; ".join(filter(None, [note, _RATIOS[name]]))
    return Outcome(name, best, tried, time.process_time() - started, curve=tuple(curve), note=note)


def _why_none(name: str, problem: Problem, cpus: list[int], gpus: list[int], tried: int) -> str:
    if name == "static-cpu-gpu" and not gpus:
        return "no type is a GPU"
    if name == "static-cpu-gpu" and not cpus:
        return "no type is a CPU"
    if not tried:
        return "no such plan is allowed"
    return "no number of replicas at this ratio holds the throughput within the limits"


def _smallest(problem: Problem, layout: _Layout) -> Plan | None:
    """Return the plan at the smallest scale that holds everything."""
    largest = _largest_scale(problem, layout)
    low, high = 0, 1
    found: Plan | None = None
    while high <= largest and found is None:
        plan = layout.sized(problem, high)
        if not plan.violations():
            found = plan
        else:
            low, high = high, max(high + 1, int(high * _GROWTH))
    while found is not None and high - low > 1:
        middle = (low + high) // 2
        plan = layout.sized(problem, middle)
        if plan.violations():
            low = middle
        else:
            found, high = plan, middle
    return found


def _largest_scale(problem: Problem, layout: _Layout) -> int:
    """Return the scale beyond which a limit or a cap is exceeded."""
    used: dict[int, int] = {}
    largest = 10**6
    for (_, _, choice), each in zip(layout.cuts, layout.replicas, strict=True):
        device = problem.choices[choice].device
        used[device] = used.get(device, 0) + each
        largest = min(largest, problem.choices[choice].cap // each)
    return min([largest, *(problem.types[device].limit // each for device, each in used.items())])


def _cpu_gpu(problem: Problem, cpus: list[int], gpus: list[int]) -> Iterator[_Layout]:
    """Cut where layers that move rows meet others."""
    heavy = is_data_heavy(problem)
    runs = [(on_cpu, list(rows)) for on_cpu, rows in groupby(range(len(heavy)), lambda row: bool(heavy[row]))]
    for cpu, gpu in product(cpus, gpus):
        yield from _with_choices(
            problem,
            [(rows[0], rows[-1], cpu if on_cpu else gpu) for on_cpu, rows in runs],
            [CORES_PER_GPU if on_cpu else 1 for on_cpu, _ in runs],
        )


def _with_choices(
    problem: Problem, runs: list[tuple[int, int, int]], replicas: list[int]
) -> Iterator[_Layout]:
    """Yield the layouts of (first layer, last layer, type): every place of tables, the same for all stages."""
    places = dict.fromkeys(choice.tables for choice in problem.choices)
    for tables in places:
        cuts = []
        for first, last, device in runs:
            choice = problem.choice_index(problem.type_names[device], tables)
            if not problem.facts[choice, first : last + 1, HAS_TABLES].any():
                choice = problem.choice_index(problem.type_names[device], "")
            cuts.append((first, last, choice))
        if all(problem.allowed[first : last + 1, device].all() for first, last, device in runs):
            for schedule in problem.schedules(len(cuts)):
                yield _Layout(schedule, tuple(cuts), tuple(replicas), None)


def _servers(problem: Problem, cpus: list[int], gpus: list[int]) -> Iterator[_Layout]:
    """All layers in one stage; tables, if there are any, on servers."""
    last = len(problem.layers) - 1
    for choice, one in enumerate(problem.choices):
        if one.tables not in ("", SERVERS, DISK) or not problem.allowed[:, one.device].all():
            continue
        served = bool(problem.facts[choice, :, SERVED_BYTES].any())
        each = SERVERS_PER_CORE if one.device in cpus else CORES_PER_GPU
        for schedule in problem.schedules(1):
            yield _Layout(schedule, ((0, last, choice),), (1,), (each if served else 0,))


_LAYOUTS = {"static-cpu-gpu": _cpu_gpu, "static-servers": _servers}
_RATIOS = {
    "static-cpu-gpu": f"{CORES_PER_GPU} CPU cores for each GPU",
    "static-servers": f"{SERVERS_PER_CORE} server core for each CPU core, {CORES_PER_GPU} for each GPU",
}

METHODS: dict[str, Method] = {name: partial(_static, name) for name in _LAYOUTS}
