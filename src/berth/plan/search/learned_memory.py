"""What the learner remembers: every plan it has evaluated, so that none is paid for twice, and the best."""

from __future__ import annotations

import numpy as np

from berth.plan.evaluate import Evaluated, Types
from berth.plan.search.method import Search
from berth.plan.search.moves import badness


class Memory:
    """Plans by their bytes; a plan that comes again costs no evaluation."""

    def __init__(self, search: Search, elites: int) -> None:
        self.search = search
        self.most = max(elites, 1)
        self.seen: dict[bytes, tuple[float, float, float]] = {}
        self.elites: Types = np.zeros((0, len(search.problem.layers)), np.int64)
        self._worth = np.zeros(0)

    def new_share(self, plans: Types) -> float:
        """The share of plans that were never evaluated."""
        return sum(plan.tobytes() not in self.seen for plan in plans) / max(1, len(plans))

    def judge(self, plans: Types, at_most: int | None = None) -> tuple[Types, Evaluated]:
        """The plans that are known, after evaluating what is new, `at_most` so many and within the budget."""
        plans = np.ascontiguousarray(plans, dtype=np.int64)
        keys = [plan.tobytes() for plan in plans]
        room = self.search.left if at_most is None else min(at_most, self.search.left)
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self.seen}
        new = sorted(first.values())[:room]
        if new:
            self._evaluate(plans[new], [keys[row] for row in new])
        known = [row for row, key in enumerate(keys) if key in self.seen]
        found = np.array([self.seen[keys[row]] for row in known]).reshape(-1, 3)
        return plans[known], Evaluated(found[:, 0], found[:, 1], found[:, 2])

    def _evaluate(self, plans: Types, keys: list[bytes]) -> None:
        found = self.search.evaluate(plans)
        for key, *numbers in zip(keys, found.cost_usd, found.stage_s, found.shortfall, strict=True):
            self.seen[key] = (float(numbers[0]), float(numbers[1]), float(numbers[2]))
        worth = np.concatenate([self._worth, badness(found)])
        order = np.argsort(worth, kind="stable")[: self.most]
        self.elites = np.concatenate([self.elites, plans])[order]
        self._worth = worth[order]
