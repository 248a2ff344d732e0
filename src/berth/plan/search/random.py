"""Random assignments: the baseline for every search."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Assignments, CostFunction
from berth.plan.problem import Problem
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.method import Budget, Outcome, Progress, Search

_BATCH = 256


def random(
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: CostFunction | None = None,
    start: Assignments | None = None,
) -> Outcome:
    """Draw half of the assignments layer by layer and half in runs of layers, since the former have few long stages."""
    search = Search(problem, budget, progress, objective, start)
    space = AssignmentSpace(problem, np.random.default_rng(budget.seed))
    if space.is_empty:
        return search.no_placement("random")
    search.evaluate_start()
    while search.remaining:
        count = min(_BATCH, search.remaining)
        search.evaluate(
            np.concatenate([space.random_uniform(count // 2), space.random_runs(count - count // 2)])
        )
        search.report_progress()
    return search.outcome("random")


METHODS = {"random": random}
