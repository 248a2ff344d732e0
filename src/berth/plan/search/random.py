"""Assignments drawn at random: what any search must beat."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Objective, Types
from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Outcome, Progress, Search
from berth.plan.search.moves import Moves

_BATCH = 256


def random(
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: Objective | None = None,
    start: Types | None = None,
) -> Outcome:
    """Half of them layer by layer, half in a few runs of layers: long stages are rare among the former."""
    search = Search(problem, budget, progress, objective, start)
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if moves.stuck:
        return search.nowhere("random")
    search.begin()
    while search.left:
        count = min(_BATCH, search.left)
        search.evaluate(np.concatenate([moves.uniform(count // 2), moves.runs(count - count // 2)]))
        search.report()
    return search.outcome("random")


METHODS = {"random": random}
