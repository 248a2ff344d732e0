"""Greedy: the front layers decided one after the other, then single changes for as long as they help."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Objective, Types
from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Outcome, Progress, Search
from berth.plan.search.moves import Moves, badness


def greedy(
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: Objective | None = None,
    start: Types | None = None,
) -> Outcome:
    """Deterministic: the seed does not matter. Stops at a plan that no single change improves."""
    search = Search(problem, budget, progress, objective, start)
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if moves.stuck:
        return search.nowhere("greedy")
    plan, worth = constructed(search, moves) if start is None else _pick(search, start[None])
    better = True
    while better and search.left:
        after, after_worth = _pick(search, moves.single_changes(plan))
        better = after_worth < worth
        if better:
            plan, worth = after, after_worth
        search.report()
    return search.outcome("greedy", note="" if search.left else "the budget ended before the descent")


def constructed(search: Search, moves: Moves) -> tuple[Types, float]:
    """Layer by layer the type with which it and all layers behind it cost least; L x T evaluations."""
    plan, worth = moves.filled(0), float("inf")
    for layer in range(moves.layers):
        tried = np.array(
            [moves.filled(kind, layer, plan) for kind in range(moves.kinds) if moves.allowed[layer, kind]]
        )
        if not search.left:
            break
        plan, worth = _pick(search, tried)
    return plan, worth


def _pick(search: Search, plans: Types) -> tuple[Types, float]:
    """The best of some plans, of the first ones if the budget does not allow all."""
    plans = plans[: search.left]
    if not len(plans):
        return plans, float("inf")
    worth = badness(search.evaluate(plans))
    first = int(np.argmin(worth))
    return plans[first], float(worth[first])


METHODS = {"greedy": greedy}
