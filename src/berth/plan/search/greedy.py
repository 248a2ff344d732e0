"""Greedy: decide layer by layer from the front, then change single layers while that helps."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Assignments
from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.method import AssignmentSearch, Search


def greedy(search: Search, space: AssignmentSpace) -> str:
    """Descend to a plan that no single change improves; deterministic, the seed does not matter."""
    plan, score = (
        construct_greedily(search, space) if search.start is None else _best_of(search, search.start[None])
    )
    better = True
    while better and search.remaining:
        after, after_score = _best_of(search, space.single_layer_changes(plan))
        better = after_score < score
        if better:
            plan, score = after, after_score
        search.report_progress()
    return "" if search.remaining else "the budget ended before the descent"


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


METHODS = {"greedy": AssignmentSearch("greedy", greedy)}
