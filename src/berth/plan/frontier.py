"""The cost of throughput: the exact frontier, and the fastest plan under a price.

A plan that is optimal for a given throughput is optimal for every throughput from there up to its own. So the frontier
is a staircase: solve for a very low throughput, then for slightly more than the plan found has, and so on until no
plan is fast enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.search.exact import WarmStart, exact, min_stage_time_s
from berth.plan.search.method import Budget, Outcome

_MORE = 1 + 1e-6  # the next throughput to solve for, as a factor
_SAME = 1e-12
_SLOW = 1e-9  # the lowest throughput to solve for, as a share of the highest one


def frontier(
    problem: Problem, *, limit: int = 5000, progress: Callable[[int, Plan], None] | None = None
) -> list[Plan]:
    """Return the cheapest plan for every throughput, slowest first; each is faster and costs more than the last."""
    plans: list[Plan] = []
    for plan in frontier_plans(problem):
        plans.append(plan)
        if progress is not None:
            progress(len(plans), plan)
        if len(plans) >= limit:
            break
    return plans


def frontier_plans(problem: Problem) -> Iterator[Plan]:
    """Yield the plans of the frontier, the cheapest first."""
    throughput, known = _SLOW / min_stage_time_s(problem), WarmStart()
    while throughput > 0:  # 0: some layer has no type to run on
        plan = exact(problem.at(throughput), Budget(), known=known).plan
        if plan is None:
            return
        yield replace(plan, problem=problem)
        throughput = plan.throughput * _MORE


def fastest_under(problem: Problem, usd: float) -> Outcome:
    """Return the fastest plan that costs at most `usd`, or the cheapest plan if none does.

    The problem's own throughput is a lower bound.
    """
    known = WarmStart()
    best = exact(problem, Budget(), known=known)
    if best.plan is None or best.plan.cost_usd > usd * (1 + _SAME):
        return replace(best, note=best.note or _too_expensive(best, usd))
    high = 1.0 / min_stage_time_s(problem)
    evaluations, cpu_s = best.evaluations, best.cpu_s
    low = best.plan.throughput
    while high > low * _MORE:
        # The frontier only rises: if `middle` costs too much, so does every higher throughput.
        middle = max(low * _MORE, (low * high) ** 0.5 if high > 2 * low else (low + high) / 2)
        found = exact(problem.at(middle), Budget(), known=known)
        evaluations, cpu_s = evaluations + found.evaluations, cpu_s + found.cpu_s
        if found.plan is None or found.plan.cost_usd > usd * (1 + _SAME):
            high = middle
        else:
            best, low = found, found.plan.throughput
    return replace(best, evaluations=evaluations, cpu_s=cpu_s)


def _too_expensive(best: Outcome, usd: float) -> str:
    cost = best.plan.cost_usd if best.plan else 0.0
    return f"the cheapest plan costs ${cost:,.2f}, above ${usd:,.2f}"
