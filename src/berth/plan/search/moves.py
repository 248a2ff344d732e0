"""What searches do with assignments: draw them, compare them, change them. No layer goes where it may not.

Plans that differ in one run of layers are the natural neighbours: a stage is a run, and a change in the
middle of one costs two crossings that a longer change would not.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from berth.plan.evaluate import Evaluated, Types
from berth.plan.problem import Problem

Floats = NDArray[np.float64]

_INFEASIBLE = 1000.0  # above the logarithm of any cost


def badness(found: Evaluated) -> Floats:
    """Less is better: logarithms of the cost, then infeasible plans by how much they fall short."""
    feasible = np.isfinite(found.cost_usd)
    safe = np.where(feasible, np.maximum(found.cost_usd, 1e-300), 1.0)
    return np.where(feasible, np.log(safe), _INFEASIBLE + found.shortfall)


class Moves:
    """The assignments that a problem's forbidden places leave, and ways between them."""

    def __init__(self, problem: Problem, draw: np.random.Generator) -> None:
        self.allowed = problem.allowed
        self.draw = draw
        self.layers, self.kinds = problem.allowed.shape

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """How many types each layer may run on."""
        return self.allowed.sum(axis=1)

    @cached_property
    def choices(self) -> Types:
        """[layer, n]: the n-th type that the layer may run on."""
        return np.argsort(~self.allowed, axis=1, kind="stable")

    @property
    def stuck(self) -> bool:
        """Whether some layer may run nowhere."""
        return bool((self.count == 0).any())

    @cached_property
    def total(self) -> int:
        """How many assignments there are."""
        return int(np.prod([int(count) for count in self.count], dtype=object))

    def uniform(self, rows: int) -> Types:
        """Every layer drawn by itself."""
        pick = (self.draw.random((rows, self.layers)) * self.count).astype(np.int64)
        return self.choices[np.arange(self.layers), pick]

    def runs(self, rows: int) -> Types:
        """Assignments in runs of layers; how long the runs are differs from row to row."""
        plans = self.uniform(rows)
        goes_on = self.draw.random((rows, self.layers)) < self.draw.random((rows, 1))
        for layer in range(1, self.layers):
            before = plans[:, layer - 1]
            same = goes_on[:, layer] & self.allowed[layer, before]
            plans[:, layer] = np.where(same, before, plans[:, layer])
        return plans

    def filled(self, kind: int, begin: int = 0, plan: Types | None = None) -> Types:
        """All layers from `begin` on one type, or on the first allowed one where it is forbidden."""
        made = self.choices[:, 0].copy() if plan is None else plan.copy()
        rest = np.arange(self.layers) >= begin
        made[rest] = np.where(self.allowed[rest, kind], kind, self.choices[rest, 0])
        return made

    def changed_runs(self, plans: Types) -> Types:
        """Each plan with one run of layers on another type: a random stretch, or a piece next to a change.

        Half of the stretches begin or end where the plan changes its type, so that moving a border by some
        layers and giving a whole stage away are both likely.
        """
        rows, layers = plans.shape
        changed = plans.copy()
        ends = np.sort(self.draw.integers(0, layers, (rows, 2)), axis=1)
        kinds = self.draw.integers(0, self.kinds, (rows, 1))
        coins = self.draw.random((rows, 3)) < 0.5
        for row, plan in enumerate(plans):
            first, last, to = int(ends[row, 0]), int(ends[row, 1]), int(kinds[row, 0])
            if coins[row, 0]:
                first, last = _snapped(plan, first, last, bool(coins[row, 1]))
            if coins[row, 2]:  # to the type on one side: a border moves
                to = int(plan[first - 1]) if first > 0 else int(plan[min(last + 1, layers - 1)])
            stretch = np.arange(first, last + 1)
            changed[row, stretch] = np.where(self.allowed[stretch, to], to, plan[stretch])
        return changed

    def single_changes(self, plan: Types) -> Types:
        """Every plan that differs in exactly one layer."""
        layer, kind = np.nonzero(self.allowed)
        other = kind != plan[layer]
        layer, kind = layer[other], kind[other]
        changed = np.repeat(plan[None], len(layer), axis=0)
        changed[np.arange(len(layer)), layer] = kind
        return changed


def _snapped(plan: Types, first: int, last: int, whole: bool) -> tuple[int, int]:
    """The stretch moved to where runs begin: all of the run of its first layer, or from there on."""
    begin = first
    while begin > 0 and plan[begin - 1] == plan[first]:
        begin -= 1
    if not whole:
        return begin, max(begin, min(last, begin + last - first))
    end = first
    while end + 1 < len(plan) and plan[end + 1] == plan[first]:
        end += 1
    return begin, end
