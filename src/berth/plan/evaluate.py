"""The evaluator that every search method calls: the cost of assignments with the replicas they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry
from berth.plan.arrays import ProblemArrays
from berth.plan.problem import Problem
from berth.plan.provision import FORBIDDEN_SHORT, STAGE_COLUMNS, cut_stages, shortfall, sweep

Floats = NDArray[np.float64]
Assignments = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchEvaluation:
    """The cost of a batch of assignments; infeasible ones have infinite cost and a shortfall above 0."""

    cost_usd: Floats
    stage_s: Floats  # time per example at the bottleneck
    shortfall: Floats  # 0: holds the throughput; otherwise a sum of logarithms of what is missing


# Evaluates assignments, [plan, layer], by another objective than the closed formula.
CostFunction = Callable[[Assignments], BatchEvaluation]


class Evaluator:
    """Counts evaluations and keeps the best assignment, for budgets and anytime curves."""

    def __init__(self, problem: Problem, *, objective: CostFunction | None = None) -> None:
        self.problem = problem
        self.objective = objective or self.formula
        self.evaluations = 0
        self.best_usd = float("inf")
        self.best: Assignments | None = None
        self.curve: list[tuple[int, float]] = []  # (evaluations, dollars) whenever a better plan was found

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments, [plan, layer]."""
        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        found = self.objective(rows)
        self.evaluations += len(rows)
        if len(rows):
            first = int(np.argmin(found.cost_usd))
            if found.cost_usd[first] < self.best_usd:
                self.best_usd, self.best = float(found.cost_usd[first]), rows[first].copy()
                self.curve.append((self.evaluations, self.best_usd))
        return found

    def formula(self, rows: Assignments) -> BatchEvaluation:
        """Evaluate by the closed formula, without counting."""
        problem = self.problem
        cost, stage_s, short = evaluate(rows, problem.arrays)
        return BatchEvaluation(cost * (problem.epochs * problem.samples / 3600), stage_s, short)


@entry
def evaluate(assignments: Assignments, problem: ProblemArrays) -> tuple[Floats, Floats, Floats]:
    """(dollars per hour x seconds) per example, stage time and shortfall of each assignment."""
    count, layers = assignments.shape
    cost = np.full(count, np.inf)
    stage_s = np.zeros(count)
    short = np.zeros(count)
    stages = np.zeros((layers, STAGE_COLUMNS))
    replicas = np.zeros(layers)
    used = np.zeros(len(problem.price))
    for row in range(count):
        found, forbidden = cut_stages(assignments[row], problem, stages)
        short[row] = shortfall(stages, found, problem, used) + forbidden * FORBIDDEN_SHORT
        if short[row] > 0:
            continue
        cost[row], stage_s[row] = sweep(stages, found, problem, used, replicas)
    return cost, stage_s, short


@entry
def provisioned(assignment: Assignments, problem: ProblemArrays) -> tuple[float, float, Floats, Floats]:
    """Return cost and stage time of one assignment as `evaluate` does, its stages and their replicas."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    replicas = np.zeros(len(assignment))
    used = np.zeros(len(problem.price))
    found, forbidden = cut_stages(assignment, problem, stages)
    if shortfall(stages, found, problem, used) + forbidden > 0:
        return np.inf, 0.0, stages[:found], replicas[:found]
    cost, stage_s = sweep(stages, found, problem, used, replicas)
    return cost, stage_s, stages[:found], replicas[:found]


@entry
def stage_rows(assignment: Assignments, problem: ProblemArrays) -> Floats:
    """Return the stages of an assignment, even if it is not allowed."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    found, _ = cut_stages(assignment, problem, stages)
    return stages[:found]
