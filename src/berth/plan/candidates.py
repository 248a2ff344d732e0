"""The plans to choose from: the best one, the best with other devices, fixed plans, the least price per hour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from berth.plan.pins import restrict_to_types
from berth.plan.plan import Plan, plan_at, slots_of
from berth.plan.problem import Problem
from berth.plan.request import ANY_RATE
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome, get_method
from berth.plan.shortest_path import min_rate

FIXED_PLANS = ("cpu-only", "gpu-only", "heuristic")
NEXT_BEST, LEAST = "next best", "least $/h"
_ALL_SUBSETS = 6  # up to this many types, every subset of them is tried
QUICK = Budget(seconds=2.0)  # for each alternative
_SAME = 1 + 1e-9  # times a price: whole machines often cost the same at another throughput
_CLEARLY_LESS = 0.9  # a price per hour that is worth a line of its own
_FEW_STAGES = 3
_EXACT = 1e-9  # a lower bound this close to a cost proves it
_LARGE = 500_000  # layers^2 x types
_SHOWN = 5


@dataclass(frozen=True)
class Candidate:
    """A plan that could have been chosen; if there is none, the note says why."""

    name: str
    plan: Plan | None
    note: str = ""
    chosen: bool = False


def candidates(problem: Problem, outcome: Outcome, shown: int = _SHOWN) -> list[Candidate]:
    """Return the choice, the best plans with other devices, and the fixed plans; cheapest first, failures last."""
    chosen = outcome.plan
    found = [Candidate(outcome.method, chosen, chosen=True)] if chosen else []
    others = sorted(
        _with_other_devices(problem, chosen), key=lambda plan: (plan.cost_usd, len(plan.worker_counts))
    )
    found += [Candidate("", plan) for plan in others[:shown]]
    for name in FIXED_PLANS:
        fixed = get_method(name)(problem, Budget())
        found = _merged(found, Candidate(name, fixed.plan, fixed.note))
    slow = least_per_hour(problem)
    if slow and chosen and slow.usd_per_hour < _CLEARLY_LESS * chosen.usd_per_hour:
        known = [one.plan for one in found if one.plan and one.plan.usd_per_hour <= slow.usd_per_hour * _SAME]
        found = _merged(found, Candidate(LEAST, min(known, key=lambda plan: plan.usd_per_hour, default=slow)))
    second = next_best(chosen, found) if chosen else None
    named = [
        replace(one, name=", ".join(filter(None, (NEXT_BEST, one.name)))) if one is second else one
        for one in found
    ]
    return sorted(named, key=_rank)


def next_best(chosen: Plan, found: Sequence[Candidate]) -> Candidate | None:
    """Return the cheapest of the candidates whose stages run on other types than those of the choice."""
    others = [one for one in found if one.plan and set(one.plan.worker_counts) != set(chosen.worker_counts)]
    return min(others, key=_rank, default=None)


def least_per_hour(problem: Problem) -> Plan | None:
    """Return the plan with the lowest price per hour found at just the throughput asked for, of a few stages."""
    if problem.throughput <= ANY_RATE:
        return None
    found = []
    for stages in range(1, min(_FEW_STAGES, len(problem.layers)) + 1):
        for schedule in problem.schedules(stages):
            _, cuts, used = min_rate(problem.arrays, slots_of(schedule), problem.arrays.slowest, math.inf)
            if len(cuts) and (used <= problem.arrays.limit).all():
                chosen = [(int(first), int(last), int(choice)) for first, last, choice in cuts]
                found.append(plan_at(problem, schedule, chosen, problem.arrays.slowest))
    kept = [plan for plan in found if not plan.violations()]
    return min(kept, key=lambda plan: (round(plan.usd_per_hour, 6), plan.cost_usd), default=None)


def is_large(problem: Problem) -> bool:
    """Return whether solving takes seconds; then it is not repeated for every set of types."""
    return len(problem.layers) ** 2 * len(problem.types) > _LARGE


def fixed_plan_costs(problem: Problem, name: str, rates: Sequence[float]) -> list[float | None]:
    """Return the cost of a fixed plan at each throughput; None where it can't hold it."""
    found = (get_method(name)(problem.at(rate), Budget()).plan for rate in rates)
    return [plan.cost_usd if plan else None for plan in found]


def _rank(one: Candidate) -> tuple[float, bool]:
    return (one.plan.cost_usd if one.plan else float("inf"), not one.chosen)


def _merged(found: list[Candidate], new: Candidate) -> list[Candidate]:
    """Add a candidate; if its plan is already there, add only its name."""
    for at, one in enumerate(found):
        if one.plan and new.plan and _is_same(one.plan, new.plan):
            name = ", ".join(filter(None, (one.name, new.name)))
            return [*found[:at], replace(one, name=name, note=new.note), *found[at + 1 :]]
    return [*found, new]


def _is_same(one: Plan, other: Plan) -> bool:
    """Return whether two plans rent the same, apart from micro-batches that change nothing."""
    if one.stages == other.stages and one.micro == other.micro:
        return True
    placed = [
        [(at.first, at.last, at.choice, at.replicas, at.servers) for at in plan.stages]
        for plan in (one, other)
    ]
    equal = math.isclose(one.cost_usd, other.cost_usd) and math.isclose(one.throughput, other.throughput)
    return placed[0] == placed[1] and equal


def _with_other_devices(problem: Problem, chosen: Plan | None) -> Iterator[Plan]:
    """Yield the cheapest plan of every other set of types that stages really run on.

    Larger sets come first: if the optimum of a set uses fewer types, it is also that of every set between the two. If
    no plan of a set holds the throughput, none of a smaller one does.
    """
    seen = {frozenset(chosen.worker_counts)} if chosen else set()
    optima: list[
        tuple[frozenset[str], frozenset[str]]
    ] = []  # types that are allowed, and those that are used
    for names in _sets(problem, chosen):
        allowed = frozenset(names)
        if any(used <= allowed <= wider for wider, used in optima):
            continue
        outcome = exact(restrict_to_types(problem, names), QUICK)
        plan, used = outcome.plan, frozenset(outcome.plan.worker_counts if outcome.plan else ())
        if outcome.lower_bound_usd >= (plan.cost_usd * (1 - _EXACT) if plan else math.inf):
            optima.append((allowed, used))
        if plan is not None and used not in seen:
            seen.add(used)
            yield replace(plan, problem=problem)


def _sets(problem: Problem, chosen: Plan | None) -> Iterator[Sequence[str]]:
    names = problem.type_names
    if is_large(problem):
        return
    if len(names) <= _ALL_SUBSETS:
        for size in range(len(names), 0, -1):
            yield from combinations(names, size)
        return
    for left_out in chosen.worker_counts if chosen else ():
        yield [name for name in names if name != left_out]
    yield from ((name,) for name in names)
