"""The choice that a user asked for: the cheapest plan, the fastest under a price, or one on preferred devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from berth.errors import InputError
from berth.plan.build import only_types, type_called
from berth.plan.explain import mix, round_down
from berth.plan.frontier import fastest_under
from berth.plan.infeasible import Infeasible, diagnose
from berth.plan.objective.refine import MEASUREMENTS, Refined, objective, refine
from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome, Progress, method
from berth.plan.wanted import Posed, Wanted, pose
from berth.units import format_rate, format_usd

WITHIN = 0.05  # how much dearer a plan on preferred devices may be
_UNDECIDED = "no plan in the time allowed; whether there is one is not known"


@dataclass(frozen=True)
class Asked:
    """How to choose."""

    method: str = "exact"
    budget: Budget = field(default_factory=Budget)
    prefer: tuple[str, ...] = ()
    within: float = WITHIN
    max_usd: float | None = None


def find_plan(wanted: Wanted, asked: Asked | None = None, progress: Progress | None = None) -> Outcome:
    """The plan for what is wanted, by names and figures; an `InputError` says why there is none."""
    posed = pose(wanted)
    problem, asked = posed.problem, asked or Asked()
    if wanted.max_usd is not None:
        asked = replace(asked, max_usd=wanted.max_usd)
    outcome = choose(problem, asked, progress, posed.serving_usd)
    if outcome.plan is None:
        raise refusal(problem, outcome)
    return outcome


def choose(
    problem: Problem,
    asked: Asked,
    progress: Progress | None = None,
    serving_usd: Callable[[float], float] = lambda rate: 0.0,
) -> Outcome:
    """The outcome that was asked for; its plan is None if there is none.

    `serving_usd` is what reading and serving cost at a rate: `max_usd` covers it too.
    """
    if asked.max_usd is not None:
        return _fastest(problem, asked, serving_usd)
    search = method(asked.method)
    best = search(problem, asked.budget, progress)
    if best.plan is None or not asked.prefer:
        return best
    names = [type_called(problem, name) for name in asked.prefer]
    for count in range(1, len(names) + 1):
        found = search(only_types(problem, names[:count]), asked.budget, progress)
        if found.plan and found.plan.cost_usd <= best.plan.cost_usd * (1 + asked.within):
            return _preferred(problem, best, found, names[:count])
    dearer = f"no plan on {' and '.join(names)} alone is within {asked.within:.0%} of the cheapest"
    return replace(best, note=dearer)


def _preferred(problem: Problem, best: Outcome, found: Outcome, names: Sequence[str]) -> Outcome:
    assert best.plan is not None
    assert found.plan is not None
    extra = found.plan.cost_usd / best.plan.cost_usd - 1
    if extra <= 1e-9:
        return best
    note = f"preferred: {' and '.join(names)} alone, {extra:.1%} above the cheapest ({format_usd(best.plan.cost_usd)})"
    return replace(
        found,
        plan=replace(found.plan, problem=problem),
        lower_bound_usd=best.lower_bound_usd,
        certificate=None,  # it proves the other plan
        evaluations=best.evaluations + found.evaluations,
        cpu_s=best.cpu_s + found.cpu_s,
        note=note,
    )


def _fastest(problem: Problem, asked: Asked, serving_usd: Callable[[float], float]) -> Outcome:
    assert asked.max_usd is not None
    if asked.method != "exact" or asked.prefer:
        raise InputError(
            "--max-usd asks for the fastest plan under a price, which only exact finds",
            hint="leave out --method and --prefer",
        )
    found = fastest_under(problem, asked.max_usd, serving_usd)
    plan = found.plan
    if plan is None:
        return found
    serving = serving_usd(plan.throughput)
    if plan.cost_usd + serving > asked.max_usd * (1 + 1e-9):
        with_it = f" and {format_usd(serving)} for reading and serving" if serving else ""
        raise InputError(
            f"no plan costs {format_usd(asked.max_usd)} or less",
            hint=f"the cheapest costs {format_usd(plan.cost_usd)}{with_it}, at {format_rate(plan.throughput)}",
        )
    return found


def by_formula(asked: Asked) -> Asked:
    """The start of a search under another truth: what is best by the formula, which exact knows."""
    return replace(asked, method="exact", budget=Budget(seed=asked.budget.seed))


def refined(
    posed: Posed,
    model: str | None,
    outcome: Outcome,
    asked: Asked,
    objective_name: str,
    progress: Progress | None = None,
) -> Refined:
    """The formula's plan, searched on from there under another truth."""
    assert outcome.plan is not None
    profile = posed.setup.profile if posed.setup else None
    truth = objective(objective_name, posed.problem, profile=profile, model=model, seed=asked.budget.seed)
    try:
        budget = asked.budget
        if truth.name == "measure":
            budget = replace(budget, evaluations=min(budget.evaluations, MEASUREMENTS))
        return refine(posed.problem, outcome.plan, truth, asked.method, budget, progress)
    finally:
        truth.close()


def refuted(start: Plan, found: Refined, truth: str) -> InputError:
    """The error where neither the formula's plan nor any plan tried from there holds the throughput."""
    rate = format_rate(start.problem.throughput)
    return InputError(
        f"no plan found holds {rate} by {truth}: {mix(start)}, the formula's plan, "
        f"reaches {format_rate(found.start.throughput)} with as many units as allowed",
        hint=f"the fastest of {found.outcome.evaluations:,} plans tried reaches "
        f"{format_rate(found.best.throughput)}; ask for less, allow more devices, or use a larger --budget",
    )


def reason(problem: Problem, outcome: Outcome) -> Infeasible:
    """Why there is no plan: none exists, or the method did not find one."""
    if outcome.method == "exact" and outcome.lower_bound_usd < math.inf:
        return Infeasible(f"exact found {_UNDECIDED}", None, 0.0, {})
    if outcome.method != "exact":
        best = exact(problem, Budget()).plan
        if best is not None:
            said = f"{outcome.method} found no plan in {outcome.evaluations:,} evaluations; exact finds one"
            held = max(best.throughput, problem.throughput)  # which it may miss in the last digit
            return Infeasible(said, None, held, {})
    return diagnose(problem)


def refusal(problem: Problem, outcome: Outcome) -> InputError:
    """The same as an error for people."""
    why = reason(problem, outcome)
    if _UNDECIDED in why.reason:
        return InputError(why.reason, hint="give it more time: --cpu-time 10m")
    if outcome.method != "exact" and why.layer is None and why.throughput >= problem.throughput:
        return InputError(why.reason, hint="give it a larger --budget, or leave out --method")
    hints = []
    if why.throughput > 0:
        hints.append(f"the nearest that can be held: {format_rate(round_down(why.throughput))}")
    hints += [f"or a limit of {units} {name}" for name, units in why.limits.items()]
    return InputError(
        f"no plan holds {format_rate(problem.throughput)}: {why.reason}", hint="\n  ".join(hints) or None
    )
