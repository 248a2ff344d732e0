"""What throughput costs: the exact frontier, and the fastest plan under a price.

A plan that is optimal for a wanted throughput is optimal for every throughput from there up to its own. So
the frontier is a staircase: solve for any throughput at all, then for a hair more than the plan found has,
and so on until nothing is fast enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.search.exact import Known, exact, fastest
from berth.plan.search.method import Budget, Outcome

_MORE = 1 + 1e-6  # a hair more throughput
_SAME = 1e-12
_SLOW = 1e-9  # of the highest throughput there could be: as slow as anybody wants


def frontier(
    problem: Problem, *, most: int = 5000, progress: Callable[[int, Plan], None] | None = None
) -> list[Plan]:
    """The cheapest plan for every throughput, slowest first: each faster and dearer than the one before."""
    plans: list[Plan] = []
    for plan in steps(problem):
        plans.append(plan)
        if progress is not None:
            progress(len(plans), plan)
        if len(plans) >= most:
            break
    return plans


def steps(problem: Problem) -> Iterator[Plan]:
    """The frontier's plans one by one, from the cheapest of all."""
    throughput, known = _SLOW / fastest(problem), Known()
    while throughput > 0:  # 0: some layer may run nowhere
        plan = exact(problem.at(throughput), Budget(), known=known).plan
        if plan is None:
            return
        yield replace(plan, problem=problem)
        throughput = plan.throughput * _MORE


def fastest_under(
    problem: Problem, usd: float, serving_usd: Callable[[float], float] = lambda rate: 0.0
) -> Outcome:
    """The fastest plan that costs at most `usd` with reading and serving at its rate.

    The problem's own throughput is the least wanted. Whole cores read and serve, so the sum need not rise with
    the rate as plans' costs do: the limit on the plan alone is lowered by what the sum is above, until it fits.
    """
    known, limit, evaluations, cpu_s = Known(), usd, 0, 0.0
    while True:
        best = _fastest_plan(problem, limit, known)
        evaluations, cpu_s = evaluations + best.evaluations, cpu_s + best.cpu_s
        best = replace(best, evaluations=evaluations, cpu_s=cpu_s)
        if best.plan is None or best.plan.cost_usd > limit * (1 + _SAME):
            return best
        above = best.plan.cost_usd + serving_usd(best.plan.throughput) - usd
        if above <= usd * _SAME:
            return _faster_still(problem, best, usd, serving_usd, known)
        limit = min(limit, best.plan.cost_usd) - above  # the plan found may be far below the limit


def _faster_still(
    problem: Problem, best: Outcome, usd: float, serving_usd: Callable[[float], float], known: Known
) -> Outcome:
    """The last of the next faster plans that still fit: lowering the limit may have gone a little too far."""
    while best.plan is not None:
        found = exact(problem.at(best.plan.throughput * _MORE), Budget(), known=known)
        if found.plan is None:
            break
        if found.plan.cost_usd + serving_usd(found.plan.throughput) > usd * (1 + _SAME):
            break
        best = replace(
            found, evaluations=best.evaluations + found.evaluations, cpu_s=best.cpu_s + found.cpu_s
        )
    return best


def _fastest_plan(problem: Problem, usd: float, known: Known) -> Outcome:
    """The fastest plan that costs at most `usd` by itself, or the cheapest if none does."""
    best = exact(problem, Budget(), known=known)
    if best.plan is None or best.plan.cost_usd > usd * (1 + _SAME):
        return replace(best, note=best.note or _too_dear(best, usd))
    high = 1.0 / fastest(problem)
    evaluations, cpu_s = best.evaluations, best.cpu_s
    low = best.plan.throughput
    while high > low * _MORE:
        # The frontier only rises: what is too dear at `middle` is too dear above it.
        middle = max(low * _MORE, (low * high) ** 0.5 if high > 2 * low else (low + high) / 2)
        found = exact(problem.at(middle), Budget(), known=known)
        evaluations, cpu_s = evaluations + found.evaluations, cpu_s + found.cpu_s
        if found.plan is None or found.plan.cost_usd > usd * (1 + _SAME):
            high = middle
        else:
            best, low = found, found.plan.throughput
    return replace(best, evaluations=evaluations, cpu_s=cpu_s)


def _too_dear(best: Outcome, usd: float) -> str:
    cost = best.plan.cost_usd if best.plan else 0.0
    return f"the cheapest plan costs ${cost:,.2f}, above ${usd:,.2f}"
