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


def fastest_under(problem: Problem, usd: float) -> Outcome:
    """The fastest plan that costs at most `usd`; the problem's own throughput is the least wanted."""
    known = Known()
    best = exact(problem, Budget(), known=known)
    if best.plan is None or best.plan.cost_usd > usd * (1 + 1e-12):
        return replace(best, note=best.note or _too_dear(best, usd))
    high = 1.0 / fastest(problem)
    evaluations, cpu_s = best.evaluations, best.cpu_s
    low = best.plan.throughput
    while high > low * _MORE:
        # The frontier only rises: what is too dear at `middle` is too dear above it.
        middle = max(low * _MORE, (low * high) ** 0.5 if high > 2 * low else (low + high) / 2)
        found = exact(problem.at(middle), Budget(), known=known)
        evaluations, cpu_s = evaluations + found.evaluations, cpu_s + found.cpu_s
        if found.plan is None or found.plan.cost_usd > usd * (1 + 1e-12):
            high = middle
        else:
            best, low = found, found.plan.throughput
    return replace(best, evaluations=evaluations, cpu_s=cpu_s)


def _too_dear(best: Outcome, usd: float) -> str:
    cost = best.plan.cost_usd if best.plan else 0.0
    return f"the cheapest plan costs ${cost:,.2f}, above ${usd:,.2f}"
