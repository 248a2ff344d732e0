"""Greedy: decide layer by layer from the front, then change single layers while that helps."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Assignments, CostFunction
from berth.plan.problem import Problem
from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.method import Budget, Outcome, Progress, Search


def greedy(
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: CostFunction | None = None,
    start: Assignments | None = None,
) -> Outcome:
    """Descend to a plan that no single change improves; deterministic, the seed does not matter."""
    search = Search(problem, budget, progress, objective, start)
    space = AssignmentSpace(problem, np.random.default_rng(budget.seed))
    if space.is_empty:
        return search.no_placement("greedy")
    plan, score = construct_greedily(search, space) if start is None else _best_of(search, start[None])
    better = True
    while better and search.remaining:
        after, after_score = _best_of(search, space.single_layer_changes(plan))
        better = after_score < score
        if better:
            plan, score = after, after_score
        search.report_progress()
    return search.outcome("greedy", note="" if search.remaining else "the budget ended before the descent")


def construct_greedily(search: Search, space: AssignmentSpace) -> tuple[Assignments, float]:
    """Choose for each layer the type with which it and all later layers cost least; L x T evaluations."""
    plan, score = space.fill_from(0), float("inf")
    for layer in range(space.layers):
        tried = np.array(
            [
                space.fill_from(device, layer, plan)
                for device in range(space.num_types)
                if space.allowed[layer, device]
            ]
        )
        if not search.remaining:
            break
        plan, score = _best_of(search, tried)
    return plan, score


def _best_of(search: Search, plans: Assignments) -> tuple[Assignments, float]:
    """Return the best of some plans; of the first ones if the budget does not allow all."""
    plans = plans[: search.remaining]
    if not len(plans):
        return plans, float("inf")
    score = cost_score(search.evaluate(plans))
    first = int(np.argmin(score))
    return plans[first], float(score[first])


METHODS = {"greedy": greedy}
