"""Searches under another objective than the closed formula, starting from the formula's best plan.

The objective is a black box, so nothing is proven: the result is the best plan seen. It is never worse than the
start, which is evaluated first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.plan.evaluate import Assignments, BatchEvaluation
from berth.plan.objective.protocol import Evaluation, Objective
from berth.plan.objective.simulate import SimulatedObjective, SimulationOptions
from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.search.method import BLACK_BOX, Budget, Outcome, Progress, canonical_name, get_method

OBJECTIVES = {
    "formula": "the closed formula",
    "simulate": "an event simulation of the plan's training steps (modelled)",
}
DEFAULT_METHOD = "genetic"  # instead of exact, which solves the formula only


@dataclass(frozen=True)
class Refinement:
    """The start plan and the best plan found, both evaluated by the objective."""

    outcome: Outcome  # its plan has the objective's counts, but the formula's figures
    start: Evaluation
    best: Evaluation

    @property
    def gain(self) -> float | None:
        """Share of the start plan's cost that the search saves; None if either plan misses the throughput."""
        if not (self.best.feasible and self.start.feasible):
            return None
        return 1 - self.best.cost_usd / self.start.cost_usd


class _BestTracker:
    """Evaluates by an objective and keeps the best assignment, since searches return plans of the formula.

    As long as no assignment holds the throughput, the best is the one with the smallest shortfall.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.best: Assignments | None = None
        self.best_key = (float("inf"), float("inf"))  # cost, shortfall

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        found = self.objective(assignments)
        row = int(np.lexsort((found.shortfall, found.cost_usd))[0])
        key = (float(found.cost_usd[row]), float(found.shortfall[row]))
        if key < self.best_key:
            self.best_key, self.best = key, assignments[row].copy()
        return found


def make_objective(name: str, problem: Problem, *, seed: int = 0, **options: Any) -> SimulatedObjective:
    """Return an objective by name; options may follow the name: `simulate:steps=20,variation=0.1`."""
    name, _, text = name.partition(":")
    if name != SimulatedObjective.name:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return SimulatedObjective(problem, _build(SimulationOptions, _options(text) | options), seed=seed)


def refine(
    problem: Problem,
    start: Plan,
    objective: Objective,
    method: str = DEFAULT_METHOD,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> Refinement:
    """Search from `start`; evaluating the start plan and the final plan does not count against the budget."""
    if method == "exact":
        method = DEFAULT_METHOD
    if canonical_name(method) not in BLACK_BOX:
        raise InputError(
            f"{method} can't search under {objective.name}", hint=f"one of {', '.join(sorted(BLACK_BOX))} can"
        )
    budget = budget or Budget()
    began = objective.evaluate_plan(start)
    tracker = _BestTracker(objective)
    devices = np.array(start.assignment, np.int64)
    outcome = get_method(method)(problem, budget, progress, objective=tracker, start=devices)
    found = began if tracker.best is None else objective.evaluate(tracker.best)
    best = min(began, found, key=lambda one: one.cost_usd)
    if not best.feasible:
        return Refinement(
            replace(outcome, plan=None), began, max(began, found, key=lambda one: one.throughput)
        )
    return Refinement(replace(outcome, plan=best.plan, note=best.note), began, best)


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(
                f"{part!r} is not KEY=VALUE", hint="write it like simulate:steps=20,variation=0.1"
            )
        key = key.strip().replace("-", "_")
        options[key] = _value(value.strip())
    return options


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _build(cls: type[Any], options: dict[str, Any]) -> Any:
    """Return the options as a dataclass; refuse unknown keys and wrong types."""
    known = cls.__dataclass_fields__
    for key, value in options.items():
        if key not in known:
            raise UnknownNameError("option of the objective", key, known)
        if not isinstance(value, (int, float, type(None))):
            raise InputError(f"{key} is {value!r}", hint="a number is expected")
    return cls(**options)
