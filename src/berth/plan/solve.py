"""Answers a plan request: search, explain why there is no plan, and judge every plan by the event simulation.

A plan that does not reach the throughput asked for in the simulation is not recommended: the problem is solved again
for a higher throughput, until its plan holds. A proof then covers that problem: no plan that is sized for as much by
the formula costs less.

`solve` is the one place that does this; `find_plan` is the same for callers that want a plan or an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from berth.errors import InputError, UnknownNameError
from berth.plan.explain import round_down
from berth.plan.frontier import fastest_under
from berth.plan.infeasible import Infeasible, diagnose
from berth.plan.objective.refine import OBJECTIVES, Refinement, make_objective, refine
from berth.plan.objective.simulate import (
    MARGIN_ROUNDS,
    SimulatedObjective,
    holds,
    next_price,
    next_target,
    precision,
)
from berth.plan.pins import match_type, restrict_to_types
from berth.plan.problem import Problem
from berth.plan.request import PlanRequest, build_problem
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome, Progress, canonical_name, get_method
from berth.plan.stage_reasons import device_mix
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
    objective: str = FORMULA  # a name, perhaps with options: `simulate:steps=20`

    def __post_init__(self) -> None:
        canonical_name(self.method)
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
    outcome: Outcome  # by the closed formula; its plan's problem has the margin
    infeasible: Infeasible | None = None  # set if the outcome has no plan
    refinement: Refinement | None = None  # set if another objective was asked for
    error: InputError | None = None
    simulated_throughput: float = 0.0  # of the final plan, in the event simulation
    margin: float = 0.0  # share by which the outcome's problem asks for more than the request
    without_margin: float = 0.0  # what the plan without that margin reaches in the simulation

    @property
    def final(self) -> Outcome:
        """The outcome to use: by the objective that was asked for."""
        return self.outcome if self.refinement is None else self.refinement.outcome


@dataclass(frozen=True, slots=True)
class _Sized:
    """A plan that holds the throughput in the simulation, or the fastest of those that do not."""

    outcome: Outcome
    reached: float
    margin: float
    without: float  # reached by the plan without a margin
    holds: bool


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
    objective = _objective(problem, options)
    with watch(options.method) as progress:
        outcome = search(problem, _formula_options(options), request.max_usd, progress)
        if outcome.plan is None:
            why = no_plan_reason(problem, outcome)
            return Solution(request, problem, outcome, why, error=no_plan_error(problem, outcome, why))
        if request.max_usd is not None:
            priced = _within_price(problem, outcome, request.max_usd, options, objective)
            error = None if priced.holds else _price_error(priced, request.max_usd)
            return Solution(
                request,
                problem,
                priced.outcome,
                error=error,
                simulated_throughput=priced.reached,
                without_margin=priced.without,
            )
        sized = _sized(problem, outcome, _formula_options(options), objective, progress)
    refinement, reached = None, sized.reached
    error = None if sized.holds else _refuted_error(outcome, sized)
    if options.objective != FORMULA:
        assert sized.outcome.plan is not None
        with watch(f"{options.method}, {options.objective}") as progress:
            refinement = refine(
                problem, sized.outcome.plan, objective, options.method, options.budget, progress
            )
        reached = refinement.best.throughput
        error = None if refinement.best.feasible else _refuted_error(outcome, sized, refinement)
    return Solution(
        request,
        problem,
        sized.outcome,
        refinement=refinement,
        error=error,
        simulated_throughput=reached,
        margin=sized.margin,
        without_margin=sized.without,
    )


def _within_price(
    problem: Problem, outcome: Outcome, max_usd: float, options: SearchOptions, objective: SimulatedObjective
) -> _Sized:
    """Search for lower prices until the training costs at most `max_usd` at the throughput of the simulation."""
    assert outcome.plan is not None
    most, without = max_usd * (1 + precision(problem)), objective.throughput_of(outcome.plan)
    best = _Sized(outcome, without, 0.0, without, _simulated_usd(outcome, without) <= most)
    target, evaluations, cpu_s = max_usd, outcome.evaluations, outcome.cpu_s
    for count in range(MARGIN_ROUNDS):
        if best.holds:
            break
        target = next_price(target, max_usd, _simulated_usd(best.outcome, best.reached), count)
        try:
            found = search(problem, _formula_options(options), target)
        except InputError:  # no plan is that cheap
            break
        evaluations, cpu_s = evaluations + found.evaluations, cpu_s + found.cpu_s
        if found.plan is None:
            break
        reached = objective.throughput_of(found.plan)
        best = _Sized(found, reached, 0.0, without, _simulated_usd(found, reached) <= most)
    found = replace(best.outcome, evaluations=evaluations, cpu_s=cpu_s)
    if target < max_usd and best.holds:
        note = f"planned for {format_usd(target)}: a plan for {format_usd(max_usd)} costs more in the event simulation"
        found = replace(found, note="; ".join(filter(None, (found.note, note))))
    return replace(best, outcome=found)


def _simulated_usd(outcome: Outcome, reached: float) -> float:
    """Return what the training costs at the throughput that its plan reaches in the simulation."""
    assert outcome.plan is not None
    return outcome.plan.cost_usd * outcome.plan.throughput / reached


def _price_error(priced: _Sized, max_usd: float) -> InputError:
    usd = _simulated_usd(priced.outcome, priced.reached)
    return InputError(
        f"no plan was found that costs at most {format_usd(max_usd)} in the event simulation",
        hint=f"the last one tried costs {format_usd(usd)} there: allow more by --max-usd",
    )


def _sized(
    problem: Problem,
    outcome: Outcome,
    options: SearchOptions,
    objective: SimulatedObjective,
    progress: Progress | None,
) -> _Sized:
    """Solve for more than asked until the plan holds the throughput in the simulation."""
    assert outcome.plan is not None
    asked = problem.throughput
    without = objective.throughput_of(outcome.plan)
    best = _Sized(outcome, without, 0.0, without, holds(problem, without))
    target, refused = asked, math.inf
    evaluations, cpu_s = outcome.evaluations, outcome.cpu_s
    for count in range(MARGIN_ROUNDS):
        if best.holds:
            break
        wanted = next_target(target, asked, best.reached, count)
        wanted = wanted if wanted < refused else math.sqrt(target * refused)
        found = search(problem.at(wanted), options, progress=progress)
        evaluations, cpu_s = evaluations + found.evaluations, cpu_s + found.cpu_s
        if found.plan is None:
            refused = wanted
            continue
        target, reached = wanted, objective.throughput_of(found.plan)
        margin = target / asked - 1
        best = _Sized(found, reached, margin, without, holds(problem, reached))
    found = replace(best.outcome, evaluations=evaluations, cpu_s=cpu_s)
    if best.margin > 0:
        found = replace(found, note="; ".join(filter(None, (found.note, _margin_note(best)))))
    return replace(best, outcome=found)


def _margin_note(sized: _Sized) -> str:
    return (
        f"sized for {_percent(sized.margin)} more than asked: the event simulation of the plan without that margin "
        f"reaches {format_rate(sized.without)}"
    )


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
    if plan.cost_usd > max_usd * (1 + 1e-9):
        raise InputError(
            f"no plan costs {format_usd(max_usd)} or less",
            hint=f"the cheapest costs {format_usd(plan.cost_usd)}, at {format_rate(plan.throughput)}",
        )
    return found


def _formula_options(options: SearchOptions) -> SearchOptions:
    """Return how to find the formula's plan: under another objective it is the start, and exact finds it."""
    if options.objective == FORMULA:
        return options
    return replace(options, method="exact", budget=Budget(seed=options.budget.seed))


def _objective(problem: Problem, options: SearchOptions) -> SimulatedObjective:
    """Return the simulation that judges plans, with the options that were asked for."""
    name = SimulatedObjective.name if options.objective == FORMULA else options.objective
    return make_objective(name, problem, seed=options.budget.seed)


def _refuted_error(outcome: Outcome, sized: _Sized, found: Refinement | None = None) -> InputError:
    assert outcome.plan is not None
    asked = format_rate(outcome.plan.problem.throughput)
    more = (
        f"; sized for {_percent(sized.margin)} more it reaches {format_rate(sized.reached)}"
        if sized.margin
        else ""
    )
    return InputError(
        f"no plan found holds {asked} in the event simulation: {device_mix(outcome.plan)}, the formula's plan, "
        f"reaches {format_rate(sized.without)}{more}",
        hint="ask for less, allow more devices, or search with --objective simulate"
        if found is None
        else f"the fastest of {found.outcome.evaluations:,} plans tried reaches "
        f"{format_rate(found.best.throughput)}; ask for less, allow more devices, or use a larger --budget",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


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
        hints.append(
            f"the highest throughput with a plan: {format_rate(round_down(why.throughput))} by the formula"
        )
    hints += [f"or a limit of {count} {name}" for name, count in why.limits.items()]
    return InputError(
        f"no plan holds {format_rate(problem.throughput)}: {why.reason}", hint="\n  ".join(hints) or None
    )
