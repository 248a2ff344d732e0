"""Jobs by goal: the planner's answers on the controller's own cluster become the alternatives of a job.

For a rate (stated, or what a deadline requires) the cheapest plan on all device types, on each GPU type with cores,
and on cores alone is found, each also at twice the rate; for a budget, the fastest that it pays for. Tables are on
servers, as the trainer has them. A plan's file states the goal and the cluster itself, so that its figures are the same
wherever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from berth.cluster.describe import describe
from berth.cluster.model import Cluster
from berth.errors import InputError
from berth.live.offer import digest_of
from berth.plan.files import plan_yaml
from berth.plan.frontier import fastest_under
from berth.plan.infeasible import diagnose, highest_throughput
from berth.plan.problem import Problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.request import ANY_RATE, ROWS, PlanRequest
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget, Outcome
from berth.plan.shape import plan_shape
from berth.plan.world import WorldOptions
from berth.plan.world_problem import problem_for
from berth.units import format_rate, format_seconds, format_usd
from berth.workload.shapes import Offer, Shape, Work, too_long

MOST = 6  # alternatives
_FASTER = (1.0, 2.0)
_SEARCH = Budget(seconds=2.0)
_PLACE = "servers"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a job should achieve; one of the last three is set."""

    model: str
    examples: float
    deadline_s: float | None = None
    examples_per_s: float | None = None
    budget_usd: float | None = None
    rows: float | None = None  # of all tables; None: the model's, or a usual number

    @property
    def rate(self) -> float:
        """Return the examples per second that it takes at least."""
        if self.deadline_s is not None:
            return self.examples / self.deadline_s
        return self.examples_per_s or ANY_RATE


@dataclass(frozen=True, slots=True)
class PlannedGoal:
    """The alternatives that meet a goal, cheapest first, and the texts of their plans by SHA-256."""

    offer: Offer
    plans: dict[str, str]


def plan_goal(goal: Goal, cluster: Cluster) -> PlannedGoal:
    """Return the plans that meet a goal on a cluster; an error says which goal would be met."""
    problem = _problem(goal, cluster)
    request = _request(goal, problem)
    found: dict[str, tuple[float, Shape]] = {}
    plans: dict[str, str] = {}
    for outcome in _outcomes(goal, problem):
        plan = outcome.plan
        if plan is None or (goal.budget_usd is not None and plan.cost_usd > goal.budget_usd):
            continue
        text = plan_yaml(request, outcome)
        digest = digest_of(text)
        shape = replace(plan_shape(plan, cluster), plan=f"{goal.model}.yaml", plan_digest=digest)
        known = found.get(shape.name)
        if known is None or plan.cost_usd < known[0]:
            found[shape.name] = plan.cost_usd, shape
            plans[digest] = text
    if not found:
        raise _none(goal, problem, cluster)
    shapes = [shape for _, shape in sorted(found.values(), key=lambda one: (one[0], one[1].name))][:MOST]
    offer = Offer(Work(goal.examples), tuple(shapes), goal.deadline_s)
    if (wrong := too_long(offer)) is not None:
        raise InputError(wrong[0], hint="give fewer --examples")
    return PlannedGoal(
        offer, {shape.plan_digest: plans[shape.plan_digest] for shape in shapes if shape.plan_digest}
    )


def _problem(goal: Goal, cluster: Cluster) -> Problem:
    profile = load_layer_profile(goal.model)
    world = WorldOptions(tables=(_PLACE,), rows=goal.rows or (None if profile.rows is not None else ROWS))
    problem = problem_for(profile, cluster, goal.rate, goal.examples, options=world)
    if problem.batch > goal.examples:
        raise InputError(
            f"a batch of {problem.batch:,.0f} is more than the {goal.examples:,.0f} examples of the job",
            hint="give more --examples",
        )
    return problem


def _outcomes(goal: Goal, problem: Problem) -> Iterator[Outcome]:
    """Yield the cheapest plans for each set of device types, or the fastest for the budget."""
    for one in _by_types(problem):
        if goal.budget_usd is not None:
            best = fastest_under(one, goal.budget_usd)
            yield best
            if best.plan is not None:
                yield exact(one.at(best.plan.throughput / 2), _SEARCH)
        else:
            for faster in _FASTER:
                yield exact(one.at(goal.rate * faster), _SEARCH)


def _by_types(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with all types, with each GPU type and cores, and with cores alone."""
    gpus = [one.name for one in problem.types if not one.name.startswith("cpu")]
    yield problem
    kept: list[list[str]] = [[name] for name in gpus if len(gpus) > 1]
    if len(gpus) < len(problem.types):
        kept.append([])
    for names in kept if gpus else ():
        reduced = problem
        for name in gpus:
            reduced = reduced if name in names else reduced.without(name)
        yield reduced


def _request(goal: Goal, problem: Problem) -> PlanRequest:
    """Return the request that a plan's file states."""
    assert problem.source is not None
    assert problem.source.cluster is not None
    return PlanRequest(
        goal.rate,
        goal.examples,
        model=goal.model,
        cluster=describe(problem.source.cluster),
        world=WorldOptions(tables=(_PLACE,)),
        max_usd=goal.budget_usd,
    )


def _none(goal: Goal, problem: Problem, cluster: Cluster) -> InputError:
    where = f"on {cluster.name}"
    if goal.budget_usd is not None:
        cheapest = exact(problem, _SEARCH).plan
        least = (
            f"the cheapest costs {format_usd(cheapest.cost_usd)}" if cheapest else "there is no plan at all"
        )
        return InputError(
            f"no plan of {goal.model} {where} costs at most {format_usd(goal.budget_usd)}", hint=least
        )
    highest = highest_throughput(problem)
    if not highest:
        return _no_place(goal, problem, where)
    hint = (
        f"the highest rate with a plan is {format_rate(highest)}: {format_seconds(goal.examples / highest)}"
    )
    if goal.deadline_s is not None:
        what = f"no plan of {goal.model} {where} meets the deadline of {format_seconds(goal.deadline_s)}"
        return InputError(what, hint=f"{hint} is the nearest deadline")
    return InputError(
        f"no plan of {goal.model} {where} holds {format_rate(goal.rate)}", hint=f"{hint} in all"
    )


def _no_place(goal: Goal, problem: Problem, where: str) -> InputError:
    """Return why no plan exists at any rate, with what would change that."""
    found = diagnose(problem.at(ANY_RATE))
    enough = [f"{count:,} {name}" for name, count in found.limits.items()]
    rows = problem.source.rows if problem.source else 0
    fixes = [f"{' or '.join(enough)} would be enough"] if enough else []
    if rows:
        fixes.append(f"its tables have {rows:,.0f} rows here; for fewer, give --rows")
    return InputError(
        f"no plan of {goal.model} fits {where}: {found.reason}", hint="; ".join(fixes) or "add devices"
    )
