"""Assignments drawn at random: what any search must beat."""

from __future__ import annotations

import numpy as np

from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Outcome, Progress, Search

_BATCH = 256


def random(problem: Problem, budget: Budget, progress: Progress | None = None) -> Outcome:
    """Half of them layer by layer, half in a few runs of layers: long stages are rare among the former."""
    search = Search(problem, budget, progress)
    draw = np.random.default_rng(budget.seed)
    kinds, layers = len(problem.types), len(problem.layers)
    while search.left:
        count = min(_BATCH, search.left)
        plans = draw.integers(0, kinds, (count, layers))
        keep = draw.random((count, layers)) < draw.random((count, 1))  # continue the run in front
        keep[: count // 2] = False
        for layer in range(1, layers):
            plans[:, layer] = np.where(keep[:, layer], plans[:, layer - 1], plans[:, layer])
        search.evaluate(plans)
        search.report()
    return search.outcome("random")


METHODS = {"random": random}
