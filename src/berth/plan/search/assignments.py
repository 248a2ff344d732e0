"""The space of allowed assignments: random ones, neighbours, and a score to compare them.

Neighbours differ in one run of layers: a stage is a run, and a change in the middle of a stage costs two crossings
that a longer change would not.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from berth.plan.evaluate import Assignments, BatchEvaluation
from berth.plan.problem import Problem

Floats = NDArray[np.float64]

_INFEASIBLE = 1000.0  # above the logarithm of any cost


def cost_score(found: BatchEvaluation) -> Floats:
    """Return a score, lower is better: the logarithm of the cost; infeasible plans rank last, by their shortfall."""
    feasible = np.isfinite(found.cost_usd)
    safe = np.where(feasible, np.maximum(found.cost_usd, 1e-300), 1.0)
    return np.where(feasible, np.log(safe), _INFEASIBLE + found.shortfall)


class AssignmentSpace:
    """The assignments that a problem allows."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self.allowed = problem.allowed
        self.rng = rng
        self.layers, self.num_types = problem.allowed.shape

    @cached_property
    def choices_per_layer(self) -> NDArray[np.int64]:
        """How many types each layer may run on."""
        return self.allowed.sum(axis=1)

    @cached_property
    def choices(self) -> Assignments:
        """The n-th type that a layer may run on, as [layer, n]."""
        return np.argsort(~self.allowed, axis=1, kind="stable")

    @property
    def is_empty(self) -> bool:
        """Whether some layer may run on no type."""
        return bool((self.choices_per_layer == 0).any())

    @cached_property
    def size(self) -> int:
        """Number of assignments."""
        return int(np.prod([int(count) for count in self.choices_per_layer], dtype=object))

    def random_uniform(self, rows: int) -> Assignments:
        """Draw every layer independently."""
        pick = (self.rng.random((rows, self.layers)) * self.choices_per_layer).astype(np.int64)
        return self.choices[np.arange(self.layers), pick]

    def random_runs(self, rows: int) -> Assignments:
        """Draw assignments in runs of layers; the mean length of a run varies from row to row."""
        plans = self.random_uniform(rows)
        continues = self.rng.random((rows, self.layers)) < self.rng.random((rows, 1))
        for layer in range(1, self.layers):
            before = plans[:, layer - 1]
            same = continues[:, layer] & self.allowed[layer, before]
            plans[:, layer] = np.where(same, before, plans[:, layer])
        return plans

    def fill_from(self, device: int, begin: int = 0, plan: Assignments | None = None) -> Assignments:
        """Put all layers from `begin` on one type, or on their first allowed type where it is forbidden."""
        made = self.choices[:, 0].copy() if plan is None else plan.copy()
        rest = np.arange(self.layers) >= begin
        made[rest] = np.where(self.allowed[rest, device], device, self.choices[rest, 0])
        return made

    def mutate_runs(self, plans: Assignments) -> Assignments:
        """Put one run of layers of each plan on another type.

        Half of the runs begin or end at a stage boundary, so that moving a boundary by some layers and moving a whole
        stage are both likely.
        """
        rows, layers = plans.shape
        changed = plans.copy()
        ends = np.sort(self.rng.integers(0, layers, (rows, 2)), axis=1)
        num_types = self.rng.integers(0, self.num_types, (rows, 1))
        coins = self.rng.random((rows, 3)) < 0.5
        for row, plan in enumerate(plans):
            first, last, to = int(ends[row, 0]), int(ends[row, 1]), int(num_types[row, 0])
            if coins[row, 0]:
                first, last = _snap_to_run(plan, first, last, bool(coins[row, 1]))
            if coins[row, 2]:  # to the type of a neighbouring stage: a boundary moves
                to = int(plan[first - 1]) if first > 0 else int(plan[min(last + 1, layers - 1)])
            stretch = np.arange(first, last + 1)
            changed[row, stretch] = np.where(self.allowed[stretch, to], to, plan[stretch])
        return changed

    def single_layer_changes(self, plan: Assignments) -> Assignments:
        """Return every plan that differs in exactly one layer."""
        layer, device = np.nonzero(self.allowed)
        other = device != plan[layer]
        layer, device = layer[other], device[other]
        changed = np.repeat(plan[None], len(layer), axis=0)
        changed[np.arange(len(layer)), layer] = device
        return changed


def _snap_to_run(plan: Assignments, first: int, last: int, whole: bool) -> tuple[int, int]:
    """Move the run to the start of its first layer's stage; `whole`: cover that stage."""
    begin = first
    while begin > 0 and plan[begin - 1] == plan[first]:
        begin -= 1
    if not whole:
        return begin, max(begin, min(last, begin + last - first))
    end = first
    while end + 1 < len(plan) and plan[end + 1] == plan[first]:
        end += 1
    return begin, end
