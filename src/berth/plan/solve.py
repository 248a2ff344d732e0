"""Answers a plan request: search, explain why there is no plan, and refine under another objective.

`solve` is the one place that does this; `find_plan` is the same for callers that want a plan or an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from berth.errors import InputError, UnknownNameError
from berth.plan.build import match_type, restrict_to_types
from berth.plan.explain import device_mix, round_down
from berth.plan.frontier import fastest_under
from berth.plan.infeasible import Infeasible, diagnose
from berth.plan.objective.refine import DEFAULT_MEASUREMENTS, OBJECTIVES, Refinement, make_objective, refine
from berth.plan.problem import Problem
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import METHODS, Budget, Outcome, Progress, get_method
from berth.units import format_rate, format_usd

MAX_EXTRA_COST = 0.05  # of a plan on preferred devices, as a share of the cheapest plan's cost
FORMULA = "formula"
_UNDECIDED = "no plan in the time allowed; whether there is one is not known"

Watch = Callable[[str], AbstractContextManager[Progress | None]]  # phase -> where to report its progress


@dataclass(frozen=True)
class SearchOptions:
    """How to search for a plan, and by which objective to judge it."""

    method: str = "exact"
    budget: Budget = field(default_factory=Budget)
    prefer: tuple[str, ...] = ()
    within: float = MAX_EXTRA_COST
    objective: str = FORMULA  # a name, perhaps with options: `simulate:lanes=2`

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownNameError("method", self.method, METHODS)
        if self.objective_name not in OBJECTIVES:
            raise UnknownNameError("objective", self.objective, OBJECTIVES)

    def check(self, max_usd: float | None) -> None:
        """Refuse options that a limit on the price excludes; commands call it before they compile kernels."""
        if max_usd is None:
            return
        if self.objective != FORMULA:
            raise InputError("--max-usd works with the closed formula only", hint="leave out --objective")
        if self.method != "exact" or self.prefer:
            raise InputError(
                "--max-usd asks for the fastest plan under a price, which only exact finds",
                hint="leave out --method and --prefer",
            )

    @property
    def objective_name(self) -> str:
        """The objective without its options."""
        return self.objective.partition(":")[0]


@dataclass(frozen=True)
class Solution:
    """The answer to a request: a plan, or the error that says why there is none."""

    request: PlanRequest
    problem: Problem
    outcome: Outcome  # by the closed formula
    infeasible: Infeasible | None = None  # set if the outcome has no plan
    refinement: Refinement | None = None  # set if another objective was asked for
    error: InputError | None = None

    @property
    def final(self) -> Outcome:
        """The outcome to use: by the objective that was asked for."""
        return self.outcome if self.refinement is None else self.refinement.outcome


def find_plan(
    request: PlanRequest, options: SearchOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Return the plan for a request; raise an `InputError` that says why if there is none."""
    solution = solve(
        request, build_problem(request), options or SearchOptions(), lambda phase: nullcontext(progress)
    )
    if solution.error is not None:
        raise solution.error
    return solution.final


def solve(request: PlanRequest, problem: Problem, options: SearchOptions, watch: Watch) -> Solution:
    """Search for the plan that a request asks for; `problem` is the request's own (`build_problem`)."""
    with watch(options.method) as progress:
        outcome = search(problem, _formula_options(options), request.max_usd, progress)
    if outcome.plan is None:
        why = no_plan_reason(problem, outcome)
        return Solution(request, problem, outcome, why, error=no_plan_error(problem, outcome, why))
    if options.objective == FORMULA:
        return Solution(request, problem, outcome)
    with watch(f"{options.method}, {options.objective}") as progress:
        refinement = _refine(request, problem, outcome, options, progress)
    error = None if refinement.best.feasible else _refuted_error(outcome, refinement, options)
    return Solution(request, problem, outcome, refinement=refinement, error=error)


def search(
    problem: Problem, options: SearchOptions, max_usd: float | None = None, progress: Progress | None = None
) -> Outcome:
    """Return the cheapest plan, the fastest under a price, or one on preferred devices; by the formula."""
    options.check(max_usd)
    if max_usd is not None:
        return _fastest(problem, max_usd)
    method = get_method(options.method)
    best = method(problem, options.budget, progress)
    if best.plan is None or not options.prefer:
        return best
    names = [match_type(problem, name) for name in options.prefer]
    for count in range(1, len(names) + 1):
        found = method(restrict_to_types(problem, names[:count]), options.budget, progress)
        if found.plan and found.plan.cost_usd <= best.plan.cost_usd * (1 + options.within):
            return _preferred(problem, best, found, names[:count])
    note = f"no plan on {' and '.join(names)} alone is within {options.within:.0%} of the cheapest"
    return replace(best, note=note)


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


def _fastest(problem: Problem, max_usd: float) -> Outcome:
    found = fastest_under(problem, max_usd)
    plan = found.plan
    if plan is None:
        return found
    serving = problem.serving_usd(plan.throughput)
    if plan.cost_usd + serving > max_usd * (1 + 1e-9):
        extra = f" and {format_usd(serving)} for reading and serving" if serving else ""
        raise InputError(
            f"no plan costs {format_usd(max_usd)} or less",
            hint=f"the cheapest costs {format_usd(plan.cost_usd)}{extra}, at {format_rate(plan.throughput)}",
        )
    return found


def _formula_options(options: SearchOptions) -> SearchOptions:
    """Return how to find the formula's plan: under another objective it is the start, and exact finds it."""
    if options.objective == FORMULA:
        return options
    return replace(options, method="exact", budget=Budget(seed=options.budget.seed))


def _refine(
    request: PlanRequest,
    problem: Problem,
    outcome: Outcome,
    options: SearchOptions,
    progress: Progress | None,
) -> Refinement:
    assert outcome.plan is not None
    profile = problem.source.profile if problem.source else None
    budget = options.budget
    objective = make_objective(
        options.objective, problem, profile=profile, model=request.model, seed=budget.seed
    )
    try:
        if objective.name == "measure":
            budget = replace(budget, evaluations=min(budget.evaluations, DEFAULT_MEASUREMENTS))
        return refine(problem, outcome.plan, objective, options.method, budget, progress)
    finally:
        objective.close()


def _refuted_error(outcome: Outcome, found: Refinement, options: SearchOptions) -> InputError:
    assert outcome.plan is not None
    rate = format_rate(outcome.plan.problem.throughput)
    return InputError(
        f"no plan found holds {rate} by {options.objective_name}: {device_mix(outcome.plan)}, the formula's plan, "
        f"reaches {format_rate(found.start.throughput)} with as many replicas as allowed",
        hint=f"the fastest of {found.outcome.evaluations:,} plans tried reaches "
        f"{format_rate(found.best.throughput)}; ask for less, allow more devices, or use a larger --budget",
    )


def no_plan_reason(problem: Problem, outcome: Outcome) -> Infeasible:
    """Return why there is no plan: none exists, or the method did not find one."""
    if outcome.method == "exact" and outcome.lower_bound_usd < math.inf:
        return Infeasible(f"exact found {_UNDECIDED}", None, 0.0, {})
    if outcome.method != "exact":
        best = exact(problem, Budget()).plan
        if best is not None:
            reason = f"{outcome.method} found no plan in {outcome.evaluations:,} evaluations; exact finds one"
            # The plan's own throughput may be lower in the last digit.
            return Infeasible(reason, None, max(best.throughput, problem.throughput), {})
    return diagnose(problem)


def no_plan_error(problem: Problem, outcome: Outcome, why: Infeasible) -> InputError:
    """Return the error for a problem without a plan, with what to do about it."""
    if _UNDECIDED in why.reason:
        return InputError(why.reason, hint="give it more time: --cpu-time 10m")
    if outcome.method != "exact" and why.layer is None and why.throughput >= problem.throughput:
        return InputError(why.reason, hint="give it a larger --budget, or leave out --method")
    hints = []
    if why.throughput > 0:
        hints.append(f"the highest throughput with a plan: {format_rate(round_down(why.throughput))}")
    hints += [f"or a limit of {count} {name}" for name, count in why.limits.items()]
    return InputError(
        f"no plan holds {format_rate(problem.throughput)}: {why.reason}", hint="\n  ".join(hints) or None
    )
