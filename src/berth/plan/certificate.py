"""Checks a plan and the proof that no plan of its plan space is cheaper, independent of the code that found them.

The proof is a chain of steps. Each claims: all plans with a stage time in (next, tau] pay at least `bound` per hour.
If the steps leave no gap from the slowest stage time allowed down to where no plan remains, and each
`next * (fixed + bound)` is at least the claimed lower bound, then no plan of the plan space costs less. The checker
computes every bound again from the problem's numbers in plain Python: the replicas of a stage, the cheapest chain of
stages by dynamic programming, prices on limits, and enumeration of device counts where prices are not enough. It
trusts nothing in a proof: figures may be missing, negative or not numbers at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from berth.plan.plan import Plan
    from berth.plan.problem import Problem
    from berth.plan.search.exact import Certificate, ProofStep

_CLOSE = 1e-7  # relative tolerance between the two implementations
_EQUAL = 1e-9  # stage times that agree to nine digits are equal
_KINDS = ("relaxed", "priced", "labelled", "work")


def check(problem: Problem, plan: Plan | None, certificate: Certificate) -> list[str]:
    """Return what is wrong with a plan and its proof; empty if both hold."""
    checker = _Checker(problem)
    found = [] if plan is None else checker.check_plan(plan, certificate.best)
    return found + checker.check_chain(certificate)


class _Checker:
    """Computes costs and bounds from the problem's numbers."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layers, self.num_types = problem.oct_s.shape
        self.price = [one.usd_per_hour for one in problem.types]
        self.limit = [one.limit for one in problem.types]
        self.memory = [math.inf if one.memory_bytes is None else one.memory_bytes for one in problem.types]
        self.fixed = problem.fixed_usd_per_hour
        self.slowest = 1.0 / problem.throughput
        self.columns = self._columns()

    def _columns(self) -> dict[str, np.ndarray]:
        problem = self.problem
        compute, data = problem.oct_s / problem.batch, problem.odt_s / problem.batch
        ones = np.ones((1, self.num_types))
        return {
            "cs": compute * (1 - problem.alpha),
            "cp": compute * problem.alpha,
            "ds": data * (1 - problem.beta),
            "dp": data * problem.beta,
            "replicated": problem.replicated_bytes[:, None] * ones,
            "sharded": problem.sharded_bytes[:, None] * ones,
            "forbidden": ~problem.allowed * 1.0,
        }

    def span(self, name: str, firsts: np.ndarray, last: int, device: int) -> np.ndarray:
        """Return the sums of a column over layers firsts..last, added from the end so that no precision is lost."""
        sums: np.ndarray = np.cumsum(self.columns[name][last::-1, device])[::-1][firsts]
        return sums

    def crossing(self, firsts: np.ndarray, last: int) -> np.ndarray:
        """Return the crossing time per example at both boundaries of stages firsts..last."""
        cross = self.problem.cross_s / self.problem.batch
        left = np.where(firsts > 0, cross[np.maximum(firsts - 1, 0)], 0.0)
        return left + (cross[last] if last + 1 < self.layers else 0.0)

    def replicas(self, firsts: np.ndarray, last: int, device: int, tau: float) -> np.ndarray:
        """Return the fewest replicas of stages firsts..last at tau, never more than the solver may count."""
        moving = self.span("dp", firsts, last, device) + self.crossing(firsts, last)
        count = np.maximum(
            _fewest(self.span("cs", firsts, last, device), self.span("cp", firsts, last, device), tau),
            _fewest(self.span("ds", firsts, last, device), moving, tau),
        )
        count = np.maximum(np.maximum(count, self.held(firsts, last, device)), 1.0)
        count[self.span("forbidden", firsts, last, device) > 0] = np.inf
        count[count > self.limit[device]] = np.inf
        return count

    def held(self, firsts: np.ndarray, last: int, device: int) -> np.ndarray:
        """Return the fewest replicas whose memory holds stages firsts..last."""
        replicated, sharded = (self.span(name, firsts, last, device) for name in ("replicated", "sharded"))
        spare = self.memory[device] - replicated
        with np.errstate(divide="ignore", invalid="ignore"):
            count = np.where(spare > 0, np.ceil(sharded / spare * (1 - _EQUAL)), np.inf)
        return np.where(replicated + sharded <= self.memory[device], 1.0, count)

    def work(self, firsts: np.ndarray, last: int, device: int, tau: float) -> np.ndarray:
        """Return a lower bound on replicas x time of stages firsts..last, at tau or faster."""
        moving = self.span("dp", firsts, last, device) + self.crossing(firsts, last)
        loose = tau * (1 + _EQUAL)
        shares = []
        for serial, shared in (
            (self.span("cs", firsts, last, device), self.span("cp", firsts, last, device)),
            (self.span("ds", firsts, last, device), moving),
        ):
            rest = loose - serial
            with np.errstate(divide="ignore", invalid="ignore"):
                shares.append(np.where(rest > 0, shared / rest, np.inf))
        result = tau * np.maximum(*shares)
        result[self.span("forbidden", firsts, last, device) > 0] = np.inf
        return result

    def cheapest(self, tau: float, prices: list[float], *, work: bool = False) -> float:
        """Return the cost of the cheapest chain of stages at tau and these prices."""
        ends = np.full((self.layers + 1, self.num_types), np.inf)  # layers before, type of the last stage
        for last in range(self.layers):
            firsts = np.arange(last + 1)
            for device in range(self.num_types):
                others = np.delete(ends[1 : last + 1], device, axis=1)
                heads = np.concatenate([[0.0], others.min(axis=1) if others.size else np.full(last, np.inf)])
                weigh = self.work if work else self.replicas
                ends[last + 1, device] = np.min(heads + prices[device] * weigh(firsts, last, device, tau))
        return float(ends[self.layers].min())

    # --- the plan ---

    def check_plan(self, plan: Plan, best: float) -> list[str]:
        """Return what is wrong with the plan: violations, or a cost other than the claimed one."""
        found = list(plan.violations())
        slowest = 0.0
        for stage in plan.stages:
            firsts, device = np.array([stage.first]), self.problem.type_index(stage.type_name)
            moving = self.span("dp", firsts, stage.last, device) + self.crossing(firsts, stage.last)
            compute = (
                self.span("cs", firsts, stage.last, device)
                + self.span("cp", firsts, stage.last, device) / stage.replicas
            )
            data = self.span("ds", firsts, stage.last, device) + moving / stage.replicas
            slowest = max(slowest, float(compute[0]), float(data[0]))
            if stage.replicas < self.held(firsts, stage.last, device)[0]:
                found.append(f"the memory of {stage.replicas} {stage.type_name} does not hold their stage")
        rate = self.fixed + sum(
            self.price[self.problem.type_index(s.type_name)] * s.replicas for s in plan.stages
        )
        if not math.isclose(slowest * rate, best, rel_tol=_CLOSE):
            found.append(f"the plan costs {slowest * rate:.9g} per example and hour, not {best:.9g}")
        if slowest > self.slowest * (1 + 2 * _EQUAL):
            found.append("the plan is slower than the throughput of the problem")
        return found

    # --- the proof ---

    def check_chain(self, certificate: Certificate) -> list[str]:
        """Return which steps do not hold, and gaps between them."""
        if not certificate.steps:
            return ["the proof has no steps"]
        if math.isnan(certificate.lower):
            return ["the claimed lower bound is not a number"]
        found = []
        at = self.slowest * (1 + _EQUAL)
        for number, step in enumerate(certificate.steps, 1):
            if step.tau < at * (1 - _EQUAL):
                found.append(f"step {number} begins at {step.tau:.9g}, but the previous one ends at {at:.9g}")
            problem = self.check_step(step, certificate.lower)
            if problem:
                found.append(f"step {number} ({step.kind}): {problem}")
            at = step.next
        last = certificate.steps[-1]
        if last.next > 0:
            found.append(f"the proof stops at {last.next:.9g}: a faster plan may be cheaper")
        return found

    def check_step(self, step: ProofStep, lower: float) -> str:
        """Return what is wrong with a step; empty if its bound holds and reaches the claimed lower bound."""
        if malformed := self.malformed(step):
            return malformed
        if step.kind == "work":
            least = self.fixed * self.floor() + self.cheapest(step.tau, self.price, work=True)
            return "" if least >= lower * (1 - _CLOSE) else f"faster plans may cost {least:.9g}"
        reached = step.next * (self.fixed + step.bound) if step.bound < math.inf else math.inf
        if reached < lower * (1 - _CLOSE):
            return f"it reaches {reached:.9g}, below the lower bound {lower:.9g}"
        bound = self.bound(step)
        if bound < step.bound * (1 - _CLOSE):
            return f"it claims {step.bound:.9g} per hour, but only {bound:.9g} can be proven"
        return ""

    def malformed(self, step: ProofStep) -> str:
        """Return why a step is malformed; prices must not be negative, or they bound nothing from below."""
        if step.kind not in _KINDS:
            return "unknown kind of step"
        if not 0 < step.tau < math.inf or not 0 <= step.next < math.inf or math.isnan(step.bound):
            return "a figure is out of range or not a number"
        if step.kind in ("priced", "labelled") and not (
            len(step.prices) == self.num_types and all(0 <= price < math.inf for price in step.prices)
        ):
            return "it needs a non-negative price for each type"
        return ""

    def bound(self, step: ProofStep) -> float:
        """Return the highest lower bound on the price per hour at the step's tau that can be proven."""
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
        """Return the lowest price that keeps all limits, or `cutoff` if none is below; enumerates device counts."""
        ahead = self.ahead(tau, reduced)
        ways: list[list[set[tuple[int, ...]]]] = []
        for last in range(self.layers):
            row: list[set[tuple[int, ...]]] = [set() for _ in range(self.num_types)]
            firsts = np.arange(last + 1)
            for device in range(self.num_types):
                replicas = self.replicas(firsts, last, device, tau)
                for first in np.flatnonzero(np.isfinite(replicas)):
                    for before in self._before(ways, int(first), device):
                        used = (
                            *before[:device],
                            before[device] + int(replicas[first]),
                            *before[device + 1 :],
                        )
                        paid = sum(price * count for price, count in zip(reduced, used, strict=True))
                        if used[device] <= self.limit[device] and paid + ahead[last, device] - due < cutoff:
                            row[device].add(used)
                row[device] = _undominated(row[device])
            ways.append(row)
        rates = [
            sum(price * count for price, count in zip(self.price, used, strict=True))
            for used in set().union(*ways[-1])
        ]
        return min(rates, default=math.inf) if min(rates, default=math.inf) < cutoff else cutoff

    def _before(
        self, ways: list[list[set[tuple[int, ...]]]], first: int, device: int
    ) -> set[tuple[int, ...]]:
        if first == 0:
            return {(0,) * self.num_types}
        return set().union(*(used for other, used in enumerate(ways[first - 1]) if other != device))

    def ahead(self, tau: float, reduced: list[float]) -> np.ndarray:
        """Return the cost of the cheapest chain after each layer, by the type of the stage that ends there."""
        behind = np.full((self.layers, self.num_types), np.inf)
        behind[-1] = 0.0
        start = np.full((self.layers + 1, self.num_types), np.inf)
        for last in range(self.layers - 1, -1, -1):
            if last + 1 < self.layers:
                for device in range(self.num_types):
                    others = np.delete(start[last + 1], device)
                    behind[last, device] = others.min() if others.size else np.inf
            firsts = np.arange(last + 1)
            for device in range(self.num_types):
                total = reduced[device] * self.replicas(firsts, last, device, tau) + behind[last, device]
                start[: last + 1, device] = np.minimum(start[: last + 1, device], total)
        return behind

    def floor(self) -> float:
        """Return a stage time that no plan beats."""
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
    """Return the ways that no other way dominates in every type."""
    kept: list[tuple[int, ...]] = []
    for way in sorted(ways, key=sum):
        if not any(all(a <= b for a, b in zip(other, way, strict=True)) for other in kept):
            kept.append(way)
    return set(kept)
