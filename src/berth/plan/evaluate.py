"""The evaluator that every search method calls: the cost of assignments with what they need to hold the throughput."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.plan.plan import candidate_schedules, schedule_table, table_places
from berth.plan.problem import Problem
from berth.plan.provision import evaluate

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
        self.schedules = schedule_table(candidate_schedules(problem))
        self.places = [one for one, _ in table_places(problem)]
        self._found: dict[bytes, tuple[float, float, float]] = {}
        self.evaluations = 0
        self.best_usd = float("inf")
        self.best: Assignments | None = None
        self.curve: list[tuple[int, float]] = []  # (evaluations, dollars) whenever a better plan was found

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments, [plan, layer]."""
        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        found = self._known(rows)
        self.evaluations += len(rows)
        if len(rows):
            first = int(np.argmin(found.cost_usd))
            if found.cost_usd[first] < self.best_usd:
                self.best_usd, self.best = float(found.cost_usd[first]), rows[first].copy()
                self.curve.append((self.evaluations, self.best_usd))
        return found

    def _known(self, rows: Assignments) -> BatchEvaluation:
        """Evaluate each assignment once: searches come back to many of them."""
        keys = [row.tobytes() for row in rows]
        places = {key: place for place, key in enumerate(keys) if key not in self._found}
        if places:
            new = self.objective(rows[list(places.values())])
            columns = zip(new.cost_usd, new.stage_s, new.shortfall, strict=True)
            self._found |= dict(zip(places, columns, strict=True))
        found = np.array([self._found[key] for key in keys]).reshape(-1, 3)
        return BatchEvaluation(*found.T.copy())

    def formula(self, rows: Assignments) -> BatchEvaluation:
        """Evaluate by the closed formula, without counting."""
        problem = self.problem
        cost, step_s, short = evaluate(rows, self.places[0].arrays, self.schedules, True)
        for one in self.places[1:]:
            other, other_s, _ = evaluate(rows, one.arrays, self.schedules, False)
            step_s = np.where(other < cost, other_s, step_s)
            cost = np.minimum(cost, other)
        short = np.where(np.isfinite(cost), 0.0, short)
        steps = problem.epochs * problem.samples / problem.batch
        return BatchEvaluation(cost * steps / 3600, step_s / problem.batch, short)
