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
from berth.plan.plan import Plan, with_replicas
from berth.plan.problem import Problem
from berth.plan.profile.layer_profile import LayerProfile
from berth.plan.search.method import BLACK_BOX, Budget, Outcome, Progress, get_method

OBJECTIVES = {
    "formula": "the closed formula",
    "simulate": "an event simulation of the planned pipeline (modelled)",
    "measure": "a real short run on this machine, scaled to other devices (emulated)",
}
DEFAULT_METHOD = "genetic"  # instead of exact, which solves the formula only
DEFAULT_MEASUREMENTS = 40  # evaluations of `measure`


@dataclass(frozen=True)
class Refinement:
    """The start plan and the best plan found, both evaluated by the objective."""

    outcome: Outcome  # its plan has the objective's replicas, but the formula's figures
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


def make_objective(
    name: str,
    problem: Problem,
    *,
    profile: LayerProfile | None = None,
    model: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Objective:
    """Return an objective by name; options may follow the name: `simulate:lanes=2,schedule=fill-drain`."""
    name, _, text = name.partition(":")
    options = _options(text) | options
    if name == "simulate":
        from berth.plan.objective.simulate import PipelineOptions, SimulatedObjective

        return SimulatedObjective(problem, _build(PipelineOptions, options), profile=profile, seed=seed)
    if name == "measure":
        from berth.plan.objective.measure import MeasuredObjective, MeasureOptions

        return MeasuredObjective(problem, model, _build(MeasureOptions, options), profile=profile, seed=seed)
    raise UnknownNameError("objective", name, OBJECTIVES)


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
    if method not in BLACK_BOX:
        raise InputError(
            f"{method} can't search under {objective.name}", hint=f"one of {', '.join(sorted(BLACK_BOX))} can"
        )
    if budget is None:
        budget = Budget(evaluations=DEFAULT_MEASUREMENTS) if objective.name == "measure" else Budget()
    began = objective.evaluate(start.assignment)
    tracker = _BestTracker(objective)
    devices = np.array(start.assignment, np.int64)
    outcome = get_method(method)(problem, budget, progress, objective=tracker, start=devices)
    best = began if tracker.best is None else objective.evaluate(tracker.best)
    if tracker.best is None or not best.feasible:
        return Refinement(
            replace(outcome, plan=None), began, max(began, best, key=lambda one: one.throughput)
        )
    plan = with_replicas(problem, tracker.best, best.replicas)
    return Refinement(replace(outcome, plan=plan, note=best.note), began, best)


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} is not KEY=VALUE", hint="write it like simulate:lanes=2,batches=4")
        key = key.strip().replace("-", "_")
        if key.startswith("most_"):  # the former prefix
            key = key.replace("most_", "max_", 1)
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
        wanted = str if isinstance(known[key].default, str) else (int, float, type(None))
        if not isinstance(value, wanted):
            expected = "text" if wanted is str else "a number"
            raise InputError(f"{key} is {value!r}", hint=f"{expected} is expected")
    return cls(**options)
