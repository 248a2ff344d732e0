"""Why no plan holds the throughput wanted, and what would be the least that makes one possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from berth.plan.problem import UNLIMITED, Problem
from berth.plan.search.exact import Known, exact, fastest
from berth.plan.search.method import Budget

_DIGITS = 1e-6
_BRIEFLY = Budget(seconds=0.5)  # whether there is a plan is known before the proof that it is the cheapest


@dataclass(frozen=True, slots=True)
class Infeasible:
    """What stands in the way, and the nearest problems that have a plan."""

    reason: str
    layer: str | None  # where it shows
    throughput: float  # the highest that can be held with these limits; 0: none at all
    limits: dict[str, int]  # for each type: units of it that would be enough, the others unchanged


def diagnose(problem: Problem) -> Infeasible:
    """The constraint that can't be met; call it when `exact` found nothing."""
    homeless = _homeless(problem)
    if homeless is not None:
        reason, layer = homeless
        return Infeasible(reason, layer, 0.0, {})
    throughput = highest_throughput(problem)
    limits = _enough(problem)
    free = problem.with_limits(dict.fromkeys(problem.type_names, UNLIMITED))
    layer = _slowest_layer(free)
    serial = 1.0 / fastest(free)
    if limits:
        listed = ", ".join(f"{name} (limit {_limit(problem, name)})" for name in limits)
        reason = f"there are too few units: more of {listed} would do"
    elif serial < problem.throughput:
        reason = f"layer {layer!r} alone takes longer than that on every type, however many units it gets"
    elif _feasible(free):
        reason = "there are too few units of several types together"
    else:
        reason = "the parts of stages that more units do not speed up take longer than that"
    return Infeasible(reason, layer, throughput, limits)


def highest_throughput(problem: Problem) -> float:
    """The highest throughput for which there is a plan; 0 if there is none for any."""
    high = 1.0 / fastest(problem)
    if not np.isfinite(high) or high <= 0:
        return 0.0
    known = Known()
    plan = exact(problem.at(high * 1e-9), _BRIEFLY, known=known).plan
    if plan is None:
        return 0.0
    low = plan.throughput
    while high > low * (1 + _DIGITS):
        middle = (low * high) ** 0.5 if high > 2 * low else (low + high) / 2
        plan = exact(problem.at(middle), _BRIEFLY, known=known).plan
        if plan is None:
            high = middle
        else:
            low = max(middle, plan.throughput)
    return low


def _feasible(problem: Problem) -> bool:
    return exact(problem, _BRIEFLY).plan is not None


def _enough(problem: Problem) -> dict[str, int]:
    """For each type, the least limit that alone makes a plan possible."""
    found = {}
    for one in problem.types:
        if one.limit >= UNLIMITED or not _feasible(problem.with_limits({one.name: UNLIMITED})):
            continue
        low, high = one.limit, max(1, 2 * one.limit)
        while not _feasible(problem.with_limits({one.name: high})):
            low, high = high, 2 * high
        while high > low + 1:
            middle = (low + high) // 2
            if _feasible(problem.with_limits({one.name: middle})):
                high = middle
            else:
                low = middle
        found[one.name] = high
    return found


def _homeless(problem: Problem) -> tuple[str, str] | None:
    """A layer that no type may run, or that fits into no type's memory."""
    for row, layer in enumerate(problem.layers):
        kinds = [kind for kind in range(len(problem.types)) if problem.allowed[row, kind]]
        if not kinds:
            return f"layer {layer!r} may run on no type", layer
        if not any(_holds(problem, row, kind) for kind in kinds):
            return f"layer {layer!r} does not fit into the memory of any type it may run on", layer
    return None


def _holds(problem: Problem, row: int, kind: int) -> bool:
    """Whether some number of units holds the layer: each has all of one part and its share of the other."""
    memory, replicated = problem.types[kind].memory_bytes, problem.replicated_bytes[row]
    return memory is None or replicated < memory or replicated + problem.sharded_bytes[row] <= memory


def _slowest_layer(problem: Problem) -> str:
    tables = problem.tables
    alone = np.maximum(tables.layer[:, :, 0], tables.layer[:, :, 2])
    time_s = np.where(problem.allowed.T, alone, np.inf).min(axis=0)
    return problem.layers[int(np.argmax(time_s))]


def _limit(problem: Problem, name: str) -> int:
    return problem.types[problem.type_index(name)].limit
