"""Why no plan holds the throughput, and the smallest changes that make one possible."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from berth.plan.problem import COMPUTE, HELD_BYTES, IN, OUT, SERVED_BYTES, SHARDED_BYTES, UNLIMITED, Problem
from berth.plan.search.exact import WarmStart, exact, min_stage_time_s
from berth.plan.search.method import Budget
from berth.units import format_bytes, format_seconds

_DIGITS = 1e-6
_FEASIBILITY_ONLY = Budget(seconds=0.5)  # a plan is found long before it is proven to be the cheapest


@dataclass(frozen=True, slots=True)
class Infeasible:
    """The constraint that can't be met, and the nearest problems that have a plan."""

    reason: str
    layer: str | None  # where it shows
    throughput: float  # the highest that can be held with these limits; 0: none at all
    limits: dict[str, int]  # for each type: replicas of it that would be enough, the others unchanged


def diagnose(problem: Problem) -> Infeasible:
    """Return the constraint that can't be met; call it when `exact` found no plan."""
    unplaceable = _unplaceable_layer(problem)
    if unplaceable is not None:
        reason, layer = unplaceable
        return Infeasible(reason, layer, 0.0, {})
    throughput = highest_throughput(problem)
    limits = _sufficient_limits(problem)
    free = problem.with_limits(dict.fromkeys(problem.type_names, UNLIMITED))
    layer = _slowest_layer(free)
    serial = 1.0 / min_stage_time_s(free)
    if limits:
        listed = ", ".join(f"{name} (limit {_limit(problem, name)})" for name in limits)
        reason = f"there are too few devices: more of {listed} would be enough"
    elif serial < problem.throughput:
        reason = f"layer {layer!r} alone takes longer than that on every type, with any number of replicas"
    elif _feasible(free):
        reason = "there are too few devices of several types together"
    else:
        reason = _replica_cap(free) or _too_large(free) or _too_fast(problem)
    return Infeasible(reason, layer, throughput, limits)


def _replica_cap(problem: Problem) -> str | None:
    """Return the cap on the replicas of a stage without which there is a plan."""
    without_staleness = replace(problem, max_replicas=UNLIMITED)
    if problem.max_replicas < UNLIMITED and _feasible(without_staleness):
        stale, most = problem.max_replicas - 1, problem.max_replicas
        return f"staleness {stale} allows a stage {most} replicas at most. A larger --staleness helps"
    choices = tuple(replace(choice, cap=UNLIMITED) for choice in problem.choices)
    if choices != problem.choices and _feasible(replace(without_staleness, choices=choices)):
        capped = {choice.device: choice.cap for choice in problem.choices if choice.cap < UNLIMITED}
        most_of = ", ".join(f"{count} {problem.type_names[device]}" for device, count in capped.items())
        return (
            f"tables divided inside one machine allow a stage as many replicas as a machine has devices: {most_of}. "
            "Other --tables help"
        )
    return None


def _too_large(problem: Problem) -> str | None:
    """Return the size of the tables if there is a plan without them."""
    facts = problem.facts.copy()
    facts[:, :, [SHARDED_BYTES, SERVED_BYTES]] = 0.0
    if not _feasible(replace(problem, facts=facts)):
        return None
    tables = np.maximum(problem.facts[:, :, SHARDED_BYTES], problem.facts[:, :, SERVED_BYTES])
    size = format_bytes(float(tables.sum(axis=1).max()))
    return f"the tables are too large for the memory of any number of devices: {size}. Fewer --rows help"


def _too_fast(problem: Problem) -> str:
    """Return why no number of devices is enough, though each layer alone would be fast enough."""
    if not problem.micro:
        return "the serial parts of stages, which replicas do not speed up, take longer than that"
    step = format_seconds(problem.batch / problem.throughput)
    return (
        f"a step of {problem.batch:,.0f} examples may take {step}; optimiser, all-reduce and the smallest calls take "
        "longer with any number of replicas. A larger --batch helps"
    )


def highest_throughput(problem: Problem) -> float:
    """Return the highest throughput that has a plan; 0 if none has."""
    high = 1.0 / min_stage_time_s(problem)
    if not np.isfinite(high) or high <= 0:
        return 0.0
    known = WarmStart()
    plan = exact(problem.at(high * 1e-9), _FEASIBILITY_ONLY, known=known).plan
    if plan is None:
        return 0.0
    low = plan.throughput
    while high > low * (1 + _DIGITS):
        middle = (low * high) ** 0.5 if high > 2 * low else (low + high) / 2
        plan = exact(problem.at(middle), _FEASIBILITY_ONLY, known=known).plan
        if plan is None:
            high = middle
        else:
            low = max(middle, plan.throughput)
    return low


def _feasible(problem: Problem) -> bool:
    return exact(problem, _FEASIBILITY_ONLY).plan is not None


def _sufficient_limits(problem: Problem) -> dict[str, int]:
    """Return for each type the lowest limit that alone makes a plan possible."""
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


def _unplaceable_layer(problem: Problem) -> tuple[str, str] | None:
    """Return a layer that may run on no type or fits into no type's memory, with the reason."""
    for row, layer in enumerate(problem.layers):
        kinds = [kind for kind in range(len(problem.types)) if problem.allowed[row, kind]]
        if not kinds:
            return f"layer {layer!r} may run on no type", layer
        if not any(_holds(problem, row, kind) for kind in kinds):
            return f"layer {layer!r} does not fit into the memory of any type it may run on", layer
    return None


def _holds(problem: Problem, row: int, kind: int) -> bool:
    """Return whether some number of replicas holds the layer; each has the replicated part and its shard."""
    memory = problem.types[kind].memory_bytes
    facts = [problem.facts[at, row] for at, choice in enumerate(problem.choices) if choice.device == kind]
    return memory is None or any(
        fact[HELD_BYTES] < memory or fact[HELD_BYTES] + fact[SHARDED_BYTES] <= memory for fact in facts
    )


def _slowest_layer(problem: Problem) -> str:
    alone = problem.curves[:, :, (COMPUTE, IN, OUT), 0].max(axis=2)  # what remains of ever smaller calls
    devices = [choice.device for choice in problem.choices]
    time_s = np.where(problem.allowed.T[devices], alone, np.inf).min(axis=0)
    return problem.layers[int(np.argmax(time_s))]


def _limit(problem: Problem, name: str) -> int:
    return problem.types[problem.type_index(name)].limit
