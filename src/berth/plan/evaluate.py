"""The one evaluator: what assignments cost with the units they need. Every method of search calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry
from berth.plan.problem import Problem
from berth.plan.provision import FORBIDDEN_SHORT, STAGE_COLUMNS, cut, shortfall, sweep
from berth.plan.tables import Tables

Floats = NDArray[np.float64]
Types = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a batch of assignments costs; infeasible ones have infinite cost and a shortfall above 0."""

    cost_usd: Floats
    stage_s: Floats  # time per example at the bottleneck
    shortfall: Floats  # 0: holds the throughput; else the sum of logarithms by which it does not


# Assignments in, [plan, layer], and what they cost by another truth than the closed formula.
Objective = Callable[[Types], Evaluated]


class Evaluator:
    """Counts what it evaluates, and remembers the best it has seen: budgets and anytime curves."""

    def __init__(self, problem: Problem, *, objective: Objective | None = None) -> None:
        self.problem = problem
        self.objective = objective or self.formula
        self.evaluations = 0
        self.best_usd = float("inf")
        self.best: Types | None = None
        self.curve: list[tuple[int, float]] = []  # (evaluations, dollars) whenever a better plan was found

    def __call__(self, assignments: Types) -> Evaluated:
        """Evaluates a batch, [plan, layer] -> types."""
        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        found = self.objective(rows)
        self.evaluations += len(rows)
        if len(rows):
            first = int(np.argmin(found.cost_usd))
            if found.cost_usd[first] < self.best_usd:
                self.best_usd, self.best = float(found.cost_usd[first]), rows[first].copy()
                self.curve.append((self.evaluations, self.best_usd))
        return found

    def formula(self, rows: Types) -> Evaluated:
        """What the closed formula says; counts nothing."""
        problem = self.problem
        cost, stage_s, short = evaluate(rows, problem.tables)
        return Evaluated(cost * (problem.epochs * problem.samples / 3600), stage_s, short)


@entry
def evaluate(assignments: Types, problem: Tables) -> tuple[Floats, Floats, Floats]:
    """(dollars per hour x seconds) per example, stage time and shortfall of each assignment."""
    count, layers = assignments.shape
    cost = np.full(count, np.inf)
    stage_s = np.zeros(count)
    short = np.zeros(count)
    stages = np.zeros((layers, STAGE_COLUMNS))
    units = np.zeros(layers)
    used = np.zeros(len(problem.price))
    for row in range(count):
        found, forbidden = cut(assignments[row], problem, stages)
        short[row] = shortfall(stages, found, problem, used) + forbidden * FORBIDDEN_SHORT
        if short[row] > 0:
            continue
        cost[row], stage_s[row] = sweep(stages, found, problem, used, units)
    return cost, stage_s, short


@entry
def provisioned(assignment: Types, problem: Tables) -> tuple[float, float, Floats, Floats]:
    """One assignment in full: cost and stage time as `evaluate`, its stages and their units."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    units = np.zeros(len(assignment))
    used = np.zeros(len(problem.price))
    found, forbidden = cut(assignment, problem, stages)
    if shortfall(stages, found, problem, used) + forbidden > 0:
        return np.inf, 0.0, stages[:found], units[:found]
    cost, stage_s = sweep(stages, found, problem, used, units)
    return cost, stage_s, stages[:found], units[:found]


@entry
def cut_stages(assignment: Types, problem: Tables) -> Floats:
    """The stages of an assignment, whatever is forbidden."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    found, _ = cut(assignment, problem, stages)
    return stages[:found]
