"""The evaluated plans of the learner, so that none is evaluated twice, and the best of them."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Assignments, BatchEvaluation
from berth.plan.search.assignments import cost_score
from berth.plan.search.method import Search


class EvaluationCache:
    """Evaluations of plans by their bytes."""

    def __init__(self, search: Search, elites: int) -> None:
        self.search = search
        self.max_elites = max(elites, 1)
        self.seen: dict[bytes, tuple[float, float, float]] = {}
        self.elites: Assignments = np.zeros((0, len(search.problem.layers)), np.int64)
        self._score = np.zeros(0)

    def new_share(self, plans: Assignments) -> float:
        """Return the share of plans that were never evaluated."""
        return sum(plan.tobytes() not in self.seen for plan in plans) / max(1, len(plans))

    def evaluate(self, plans: Assignments, at_most: int | None = None) -> tuple[Assignments, BatchEvaluation]:
        """Evaluate new plans, up to `at_most` and the budget; return all plans with a known evaluation."""
        plans = np.ascontiguousarray(plans, dtype=np.int64)
        keys = [plan.tobytes() for plan in plans]
        room = self.search.remaining if at_most is None else min(at_most, self.search.remaining)
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self.seen}
        new = sorted(first.values())[:room]
        if new:
            self._evaluate(plans[new], [keys[row] for row in new])
        known = [row for row, key in enumerate(keys) if key in self.seen]
        found = np.array([self.seen[keys[row]] for row in known]).reshape(-1, 3)
        return plans[known], BatchEvaluation(found[:, 0], found[:, 1], found[:, 2])

    def _evaluate(self, plans: Assignments, keys: list[bytes]) -> None:
        found = self.search.evaluate(plans)
        for key, *numbers in zip(keys, found.cost_usd, found.stage_s, found.shortfall, strict=True):
            self.seen[key] = (float(numbers[0]), float(numbers[1]), float(numbers[2]))
        score = np.concatenate([self._score, cost_score(found)])
        order = np.argsort(score, kind="stable")[: self.max_elites]
        self.elites = np.concatenate([self.elites, plans])[order]
        self._score = score[order]
