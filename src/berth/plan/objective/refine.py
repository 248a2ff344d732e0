"""Searches under another truth than the closed formula, from the formula's own best plan on.

No proof survives here: the objective is a black box, so what is found is the best plan seen, and it is never
worse than the plan to begin with, which is evaluated first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from berth.errors import InputError, UnknownNameError
from berth.plan.evaluate import Evaluated, Types
from berth.plan.objective.judged import Judged, Truth
from berth.plan.plan import Plan, with_units
from berth.plan.problem import Problem
from berth.plan.profile.document import LayerProfile
from berth.plan.search.method import BLACK_BOX, Budget, Outcome, Progress
from berth.plan.search.method import method as search_method

OBJECTIVES = {
    "formula": "the closed formula",
    "simulate": "an event simulation of the planned pipeline (modelled)",
    "measure": "a real short run on this machine, scaled to other devices (emulated)",
}
METHOD = "genetic"  # what refines when the user's method is exact, which knows the formula only
MEASUREMENTS = 40  # evaluations of `measure` unless told otherwise


@dataclass(frozen=True)
class Refined:
    """The plan to begin with and the best one found, both by the objective."""

    outcome: Outcome  # its plan has the objective's units; its own figures are still the formula's
    start: Judged
    best: Judged

    @property
    def gain(self) -> float | None:
        """Share of the start plan's cost that refining saves; None if either does not hold the throughput."""
        if not (self.best.feasible and self.start.feasible):
            return None
        return 1 - self.best.cost_usd / self.start.cost_usd


class _Watched:
    """The objective, and the best assignment it has seen: searches only return plans of the formula.

    While none holds the throughput, the best is the one that falls short the least.
    """

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.best: Types | None = None
        self.best_key = (float("inf"), float("inf"))  # cost, shortfall

    def __call__(self, assignments: Types) -> Evaluated:
        found = self.truth(assignments)
        row = int(np.lexsort((found.shortfall, found.cost_usd))[0])
        key = (float(found.cost_usd[row]), float(found.shortfall[row]))
        if key < self.best_key:
            self.best_key, self.best = key, assignments[row].copy()
        return found


def objective(
    name: str,
    problem: Problem,
    *,
    profile: LayerProfile | None = None,
    model: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Truth:
    """An objective by name; options may follow the name: `simulate:lanes=2,schedule=fill-drain`."""
    name, _, text = name.partition(":")
    options = _options(text) | options
    if name == "simulate":
        from berth.plan.objective.simulate import Pipeline, Simulated

        return Simulated(problem, _made(Pipeline, options), profile=profile, seed=seed)
    if name == "measure":
        from berth.plan.objective.measure import Measured, Run

        return Measured(problem, model, _made(Run, options), profile=profile, seed=seed)
    raise UnknownNameError("objective", name, OBJECTIVES)


def refine(
    problem: Problem,
    start: Plan,
    truth: Truth,
    method: str = METHOD,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> Refined:
    """Searches from `start` on; evaluations of the start plan and of the final judgement count apart."""
    if method == "exact":
        method = METHOD
    if method not in BLACK_BOX:
        raise InputError(
            f"{method} can't search under {truth.name}", hint=f"one of {', '.join(sorted(BLACK_BOX))} can"
        )
    budget = budget or Budget(evaluations=MEASUREMENTS if truth.name == "measure" else Budget().evaluations)
    began = truth.judge(start.assignment)
    watched = _Watched(truth)
    kinds = np.array(start.assignment, np.int64)
    outcome = search_method(method)(problem, budget, progress, objective=watched, start=kinds)
    best = began if watched.best is None else truth.judge(watched.best)
    if watched.best is None or not best.feasible:
        return Refined(replace(outcome, plan=None), began, max(began, best, key=lambda one: one.throughput))
    plan = with_units(problem, watched.best, best.units)
    return Refined(replace(outcome, plan=plan, note=best.note), began, best)


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} is not an option", hint="write it like simulate:lanes=2,batches=4")
        options[key.strip().replace("-", "_")] = _value(value.strip())
    return options


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _made(kind: type[Any], options: dict[str, Any]) -> Any:
    """The options as a dataclass; a misspelt one is said."""
    known = kind.__dataclass_fields__
    for key, value in options.items():
        if key not in known:
            raise UnknownNameError("option of the objective", key, known)
        wanted = str if isinstance(known[key].default, str) else (int, float, type(None))
        if not isinstance(value, wanted):
            raise InputError(f"{key} is {value!r}", hint="another kind of value is expected")
    return kind(**options)
