"""Checks a plan, and that no plan of its plan space is cheaper, without the code that found it.

The proof is a chain of steps. Each says: all plans with a stage time in (next, tau] pay at least `bound` per
hour. If the steps leave no gap from the slowest stage time allowed down to where nothing is left, and each
`next * (fixed + bound)` is at least the lower bound claimed, then no plan of the plan space costs less. The checker
rebuilds every bound from the problem's own numbers with plain Python: how many units a stage needs, the cheapest
chain of stages by memoised recursion, prices on limits, enumeration of unit counts where prices do not do.
It trusts nothing that a proof says: figures may be missing, negative or no numbers at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from berth.plan.plan import Plan
    from berth.plan.problem import Problem
    from berth.plan.search.exact import Certificate, Step

_CLOSE = 1e-7  # figures of the two implementations agree to this
_EQUAL = 1e-9  # stage times that agree to nine digits are equal
_KINDS = ("relaxed", "priced", "labelled", "work")


def check(problem: Problem, plan: Plan | None, certificate: Certificate) -> list[str]:
    """What is wrong with a plan and its proof; empty if both hold."""
    checker = _Checker(problem)
    found = [] if plan is None else checker.check_plan(plan, certificate.best)
    return found + checker.check_chain(certificate)


class _Checker:
    """Rebuilds costs and bounds from the problem's numbers."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layers, self.kinds = problem.oct_s.shape
        self.price = [one.usd_per_hour for one in problem.types]
        self.limit = [one.limit for one in problem.types]
        self.memory = [math.inf if one.memory_bytes is None else one.memory_bytes for one in problem.types]
        self.fixed = problem.fixed_usd_per_hour
        self.slowest = 1.0 / problem.throughput
        self.columns = self._columns()

    def _columns(self) -> dict[str, np.ndarray]:
        problem = self.problem
        compute, data = problem.oct_s / problem.batch, problem.odt_s / problem.batch
        kinds = np.ones((1, self.kinds))
        return {
            "cs": compute * (1 - problem.alpha),
            "cp": compute * problem.alpha,
            "ds": data * (1 - problem.beta),
            "dp": data * problem.beta,
            "replicated": problem.replicated_bytes[:, None] * kinds,
            "sharded": problem.sharded_bytes[:, None] * kinds,
            "forbidden": ~problem.allowed * 1.0,
        }

    def span(self, name: str, firsts: np.ndarray, last: int, kind: int) -> np.ndarray:
        """The sums of a column over layers firsts..last: added up from the end, so that no digit is lost."""
        sums: np.ndarray = np.cumsum(self.columns[name][last::-1, kind])[::-1][firsts]
        return sums

    def crossing(self, firsts: np.ndarray, last: int) -> np.ndarray:
        """Crossing time per example at both edges of stages firsts..last."""
        cross = self.problem.cross_s / self.problem.batch
        left = np.where(firsts > 0, cross[np.maximum(firsts - 1, 0)], 0.0)
        return left + (cross[last] if last + 1 < self.layers else 0.0)

    def units(self, firsts: np.ndarray, last: int, kind: int, tau: float) -> np.ndarray:
        """The fewest units of stages firsts..last at tau, never more than the solver may count."""
        moving = self.span("dp", firsts, last, kind) + self.crossing(firsts, last)
        count = np.maximum(
            _fewest(self.span("cs", firsts, last, kind), self.span("cp", firsts, last, kind), tau),
            _fewest(self.span("ds", firsts, last, kind), moving, tau),
        )
        count = np.maximum(np.maximum(count, self.held(firsts, last, kind)), 1.0)
        count[self.span("forbidden", firsts, last, kind) > 0] = np.inf
        count[count > self.limit[kind]] = np.inf
        return count

    def held(self, firsts: np.ndarray, last: int, kind: int) -> np.ndarray:
        """The fewest units whose memory holds stages firsts..last."""
        replicated, sharded = (self.span(name, firsts, last, kind) for name in ("replicated", "sharded"))
        spare = self.memory[kind] - replicated
        with np.errstate(divide="ignore", invalid="ignore"):
            count = np.where(spare > 0, np.ceil(sharded / spare * (1 - _EQUAL)), np.inf)
        return np.where(replicated + sharded <= self.memory[kind], 1.0, count)

    def work(self, firsts: np.ndarray, last: int, kind: int, tau: float) -> np.ndarray:
        """Units x time that stages firsts..last cost at least, at tau or faster."""
        moving = self.span("dp", firsts, last, kind) + self.crossing(firsts, last)
        loose = tau * (1 + _EQUAL)
        shares = []
        for serial, shared in (
            (self.span("cs", firsts, last, kind), self.span("cp", firsts, last, kind)),
            (self.span("ds", firsts, last, kind), moving),
        ):
            rest = loose - serial
            with np.errstate(divide="ignore", invalid="ignore"):
                shares.append(np.where(rest > 0, shared / rest, np.inf))
        result = tau * np.maximum(*shares)
        result[self.span("forbidden", firsts, last, kind) > 0] = np.inf
        return result

    def cheapest(self, tau: float, prices: list[float], *, work: bool = False) -> float:
        """The cheapest chain of stages at tau and these prices."""
        ends = np.full((self.layers + 1, self.kinds), np.inf)  # layers before, type of the last stage
        for last in range(self.layers):
            firsts = np.arange(last + 1)
            for kind in range(self.kinds):
                others = np.delete(ends[1 : last + 1], kind, axis=1)
                heads = np.concatenate([[0.0], others.min(axis=1) if others.size else np.full(last, np.inf)])
                weigh = self.work if work else self.units
                ends[last + 1, kind] = np.min(heads + prices[kind] * weigh(firsts, last, kind, tau))
        return float(ends[self.layers].min())

    # --- the plan ---

    def check_plan(self, plan: Plan, best: float) -> list[str]:
        """Feasible, and as dear as claimed."""
        found = list(plan.violations())
        slowest = 0.0
        for stage in plan.stages:
            firsts, kind = np.array([stage.first]), self.problem.type_index(stage.type_name)
            moving = self.span("dp", firsts, stage.last, kind) + self.crossing(firsts, stage.last)
            compute = (
                self.span("cs", firsts, stage.last, kind)
                + self.span("cp", firsts, stage.last, kind) / stage.units
            )
            data = self.span("ds", firsts, stage.last, kind) + moving / stage.units
            slowest = max(slowest, float(compute[0]), float(data[0]))
            if stage.units < self.held(firsts, stage.last, kind)[0]:
                found.append(f"the memory of {stage.units} {stage.type_name} does not hold their stage")
        rate = self.fixed + sum(
            self.price[self.problem.type_index(s.type_name)] * s.units for s in plan.stages
        )
        if not math.isclose(slowest * rate, best, rel_tol=_CLOSE):
            found.append(f"the plan costs {slowest * rate:.9g} per example and hour, not {best:.9g}")
        if slowest > self.slowest * (1 + 2 * _EQUAL):
            found.append("the plan is slower than the throughput wanted")
        return found

    # --- the proof ---

    def check_chain(self, certificate: Certificate) -> list[str]:
        """Every step holds, and the steps leave no gap."""
        if not certificate.steps:
            return ["the proof has no steps"]
        if math.isnan(certificate.lower):
            return ["the lower bound claimed is not a number"]
        found = []
        at = self.slowest * (1 + _EQUAL)
        for number, step in enumerate(certificate.steps, 1):
            if step.tau < at * (1 - _EQUAL):
                found.append(f"step {number} begins at {step.tau:.9g}, and {at:.9g} was reached")
            problem = self.check_step(step, certificate.lower)
            if problem:
                found.append(f"step {number} ({step.kind}): {problem}")
            at = step.next
        last = certificate.steps[-1]
        if last.next > 0:
            found.append(f"the proof stops at {last.next:.9g} and something faster may be cheaper")
        return found

    def check_step(self, step: Step, lower: float) -> str:
        """Empty if the step's bound holds and reaches the lower bound claimed."""
        if odd := self.oddity(step):
            return odd
        if step.kind == "work":
            least = self.fixed * self.floor() + self.cheapest(step.tau, self.price, work=True)
            return "" if least >= lower * (1 - _CLOSE) else f"faster plans may cost {least:.9g}"
        reached = step.next * (self.fixed + step.bound) if step.bound < math.inf else math.inf
        if reached < lower * (1 - _CLOSE):
            return f"it reaches {reached:.9g}, below the lower bound {lower:.9g}"
        bound = self.bound(step)
        if bound < step.bound * (1 - _CLOSE):
            return f"it claims {step.bound:.9g} per hour, and {bound:.9g} can be shown"
        return ""

    def oddity(self, step: Step) -> str:
        """What makes a step no step at all: only prices not below 0 bound anything from below."""
        if step.kind not in _KINDS:
            return "there is no such kind of step"
        if not 0 < step.tau < math.inf or not 0 <= step.next < math.inf or math.isnan(step.bound):
            return "a figure of it is not a number that it could be"
        if step.kind in ("priced", "labelled") and not (
            len(step.prices) == self.kinds and all(0 <= price < math.inf for price in step.prices)
        ):
            return "it needs a price not below 0 for each type"
        return ""

    def bound(self, step: Step) -> float:
        """The least price per hour at the step's tau that this checker can show."""
        if step.kind == "relaxed":
            return self.cheapest(step.tau, self.price)
        prices = list(step.prices)
        due = sum(price * limit for price, limit in zip(prices, self.limit, strict=True))
        reduced = [price + more for price, more in zip(self.price, prices, strict=True)]
        bound = self.cheapest(step.tau, reduced) - due
        everything = sum(price * limit for price, limit in zip(self.price, self.limit, strict=True))
        if bound > everything:
            return math.inf
        if step.kind == "labelled" and bound < step.bound * (1 - _CLOSE):
            return self.enumerate(step.tau, reduced, due, step.bound * (1 - _CLOSE))
        return bound

    def enumerate(self, tau: float, reduced: list[float], due: float, cutoff: float) -> float:
        """The cheapest way to keep all limits, or `cutoff` if none is below: all unit counts that matter."""
        ahead = self.ahead(tau, reduced)
        ways: list[list[set[tuple[int, ...]]]] = []
        for last in range(self.layers):
            row: list[set[tuple[int, ...]]] = [set() for _ in range(self.kinds)]
            firsts = np.arange(last + 1)
            for kind in range(self.kinds):
                units = self.units(firsts, last, kind, tau)
                for first in np.flatnonzero(np.isfinite(units)):
                    for before in self._before(ways, int(first), kind):
                        used = (*before[:kind], before[kind] + int(units[first]), *before[kind + 1 :])
                        paid = sum(price * count for price, count in zip(reduced, used, strict=True))
                        if used[kind] <= self.limit[kind] and paid + ahead[last, kind] - due < cutoff:
                            row[kind].add(used)
                row[kind] = _undominated(row[kind])
            ways.append(row)
        rates = [
            sum(price * count for price, count in zip(self.price, used, strict=True))
            for used in set().union(*ways[-1])
        ]
        return min(rates, default=math.inf) if min(rates, default=math.inf) < cutoff else cutoff

    def _before(self, ways: list[list[set[tuple[int, ...]]]], first: int, kind: int) -> set[tuple[int, ...]]:
        if first == 0:
            return {(0,) * self.kinds}
        return set().union(*(used for other, used in enumerate(ways[first - 1]) if other != kind))

    def ahead(self, tau: float, reduced: list[float]) -> np.ndarray:
        """The cheapest chain behind each layer, by the type of the stage that ends there."""
        behind = np.full((self.layers, self.kinds), np.inf)
        behind[-1] = 0.0
        start = np.full((self.layers + 1, self.kinds), np.inf)
        for last in range(self.layers - 1, -1, -1):
            if last + 1 < self.layers:
                for kind in range(self.kinds):
                    others = np.delete(start[last + 1], kind)
                    behind[last, kind] = others.min() if others.size else np.inf
            firsts = np.arange(last + 1)
            for kind in range(self.kinds):
                total = reduced[kind] * self.units(firsts, last, kind, tau) + behind[last, kind]
                start[: last + 1, kind] = np.minimum(start[: last + 1, kind], total)
        return behind

    def floor(self) -> float:
        """A stage time that no plan beats."""
        limit = np.maximum(np.array(self.limit, float), 1.0)
        columns = self.columns
        alone = np.maximum(columns["cs"] + columns["cp"] / limit, columns["ds"] + columns["dp"] / limit)
        return float(np.where(self.problem.allowed, alone, np.inf).min(axis=1).max())


def _fewest(serial: np.ndarray, shared: np.ndarray, tau: float) -> np.ndarray:
    rest = tau - serial
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.where(rest > 0, np.ceil(shared / rest * (1 - _EQUAL)), np.inf)
    count = np.where((shared <= 0) & (serial <= tau * (1 + _EQUAL)), 1.0, count)
    return np.maximum(count, 1.0)


def _undominated(ways: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those that no other way undercuts in every type."""
    kept: list[tuple[int, ...]] = []
    for way in sorted(ways, key=sum):
        if not any(all(a <= b for a, b in zip(other, way, strict=True)) for other in kept):
            kept.append(way)
    return set(kept)
