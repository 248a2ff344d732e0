"""Checks a plan and the proof that no plan of its plan space is cheaper, independent of the code that found them.

The proof has a part for every schedule: each number of micro-batches with each limit on the number of stages, and a
last one for any larger number of stages. A part is a chain of steps. Each claims: all plans with a step time in
(next, at] pay at least `bound` per hour. If the parts cover all schedules, the steps leave no gap from the longest step
allowed down to where no plan remains, and each `next * (fixed + bound)` is at least the claimed lower bound, then no
plan of the plan space costs less. The checker computes every bound again from the problem's numbers with numpy: what
each possible stage needs, the cheapest chain of stages by dynamic programming, prices on limits, and enumeration of
device counts where prices are not enough. It trusts nothing in a proof: figures may be missing, negative or not
numbers at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from berth.plan.problem import COMPUTE, IN, OUT, SERVED_BYTES, SYNC_BYTES, pipelined
from berth.plan.stage_needs import EQUAL, Array, StageNeeds, away

if TYPE_CHECKING:
    from berth.plan.plan import Plan
    from berth.plan.problem import Problem, Schedule
    from berth.plan.search.exact import Certificate, ProofPart, ProofStep

_CLOSE = 1e-7  # relative tolerance between the two implementations
_ROUNDING = 1e-12  # of a sum of prices on limits, which a difference may cancel
_KINDS = ("relaxed", "priced", "labelled", "work")

Way = tuple[int, ...]  # devices used of each type, then stages


def check(problem: Problem, plan: Plan | None, certificate: Certificate) -> list[str]:
    """Return what is wrong with a plan and its proof; empty if both hold."""
    checker = _Checker(problem)
    found = [] if plan is None else checker.check_plan(plan, certificate.best)
    return found + checker.check_proof(certificate)


class _Checker(StageNeeds):
    """Checks a plan and a proof against costs and bounds of its own."""

    # --- the plan ---

    def check_plan(self, plan: Plan, best: float) -> list[str]:
        """Return what is wrong with the plan: violations, or a cost other than the claimed one."""
        found = list(plan.violations())
        host, schedule = self.problem.host, plan.schedule
        if self.problem.micro and schedule.micro not in self.problem.micro:
            found.append(f"{schedule.micro} micro-batches are not among those of the problem")
        if [layer for stage in plan.stages for layer in range(stage.first, stage.last + 1)] != list(
            range(self.layers)
        ):
            found.append("the stages do not cover every layer once")
            return found
        if plan.readers < (1 if host.readers_s > 0 else 0):
            found.append(f"the plan has {plan.readers} readers")
        slowest = host.readers_s / plan.readers if plan.readers else 0.0
        rate = self.fixed
        if self.problem.micro and schedule.w_sum < len(plan.stages):
            found.append("the plan has more stages than its schedule allows")
        for stage in plan.stages:
            at, row = (stage.first, stage.last), stage.choice
            facts, _ = self.sums[row]
            count = np.full((self.layers, self.layers), float(stage.replicas))
            examples = np.full_like(count, self.problem.batch / (stage.replicas * schedule.micro))
            parts = self.at_examples(row, examples, away(count))
            step_s = self.calls(schedule, parts) + self.once(row)
            step_s = step_s + self.ring(row, count, facts[..., SYNC_BYTES])
            slowest = max(slowest, float(step_s[at]))
            if stage.servers:
                slowest = max(slowest, float(self.load(schedule, row, count)[at]) / stage.servers)
            elif facts[(*at, SERVED_BYTES)] > 0:
                found.append(f"the tables of the stage on {stage.type_name} have no servers")
            if stage.replicas < self.held(schedule, row)[at]:
                found.append(f"the memory of {stage.replicas} {stage.type_name} does not hold their stage")
            device = self.device[row]
            unit = self.problem.types[device].unit
            rate += self.price[device] * math.ceil(stage.replicas / unit) * unit
            rate += host.usd_per_hour * math.ceil(stage.servers / host.unit) * host.unit
        rate += host.usd_per_hour * math.ceil(plan.readers / host.unit) * host.unit
        if not math.isclose(slowest * rate, best, rel_tol=_CLOSE):
            found.append(f"a step of the plan costs {slowest * rate:.9g} per hour, not {best:.9g}")
        if slowest > self.longest * (1 + 2 * EQUAL):
            found.append("the plan is slower than the throughput of the problem")
        return found

    # --- the proof ---

    def check_proof(self, certificate: Certificate) -> list[str]:
        """Return which schedules are not covered, which steps do not hold, and gaps between them."""
        if math.isnan(certificate.lower):
            return ["the claimed lower bound is not a number"]
        if not all(self.is_schedule(part.schedule) for part in certificate.parts):
            return ["a part of the proof has a schedule that is not one of the problem"]
        found = self.uncovered(certificate.parts)
        for part in certificate.parts:
            name = f"{part.schedule.micro} micro-batches, {part.schedule.stages or 'any number of'} stages: "
            found += [name + wrong for wrong in self.check_part(part, certificate.lower)]
        return found

    def is_schedule(self, schedule: Schedule) -> bool:
        """Return whether a schedule is one of the problem; with other weights every stage could seem impossible."""
        if not self.problem.micro:
            return schedule in self.problem.schedules(0)
        ways = schedule.w_sum
        if not (schedule.micro in self.problem.micro and 1 <= ways <= self.layers and ways == int(ways)):
            return False
        return schedule == pipelined(schedule.micro, schedule.stages, int(ways))

    def uncovered(self, parts: tuple[ProofPart, ...]) -> list[str]:
        """Return the plans that no part of the proof covers."""
        proven = {part.schedule for part in parts}
        if not self.problem.micro:
            return [] if set(self.problem.schedules(0)) <= proven else ["the proof has no steps"]
        missing = []
        for micro in self.problem.micro:
            for stages in range(1, self.layers + 1):
                if not any(_covers(schedule, micro, stages) for schedule in proven):
                    missing.append(f"nothing is proven for {micro} micro-batches and {stages} stages")
                    break
        return missing

    def check_part(self, part: ProofPart, lower: float) -> list[str]:
        """Return which steps of a part do not hold, and gaps between them."""
        if not part.steps:
            return ["the proof has no steps"]
        found = []
        at = self.longest * (1 + EQUAL)
        for number, step in enumerate(part.steps, 1):
            if step.at < at * (1 - EQUAL):
                found.append(f"step {number} begins at {step.at:.9g}, but the previous one ends at {at:.9g}")
            wrong = self.check_step(part.schedule, step, lower)
            if wrong:
                found.append(f"step {number} ({step.kind}): {wrong}")
            at = step.next
        if part.steps[-1].next > 0:
            found.append(f"the proof stops at {at:.9g}: a faster plan may be cheaper")
        return found

    def check_step(self, schedule: Schedule, step: ProofStep, lower: float) -> str:
        """Return what is wrong with a step; empty if its bound holds and reaches the claimed lower bound."""
        if malformed := self.malformed(step):
            return malformed
        if step.kind == "work":
            costs = np.min(
                [
                    np.where(self.useful(row), self.work(schedule, row, step.at), np.inf)
                    for row in range(len(self.device))
                ],
                axis=0,
            )
            shortest = max(self.floor(schedule), step.next)
            least = self.fixed * shortest + self.cheapest(schedule, costs)
            return "" if least >= lower * (1 - _CLOSE) else f"faster plans may cost {least:.9g}"
        reached = step.next * (self.fixed + step.bound) if step.bound < math.inf else math.inf
        if not reached >= lower * (1 - _CLOSE):
            return f"it reaches {reached:.9g}, below the lower bound {lower:.9g}"
        bound = self.bound(schedule, step)
        if bound < step.bound * (1 - _CLOSE):
            return f"it claims {step.bound:.9g} per hour, but only {bound:.9g} can be proven"
        return ""

    def malformed(self, step: ProofStep) -> str:
        """Return why a step is malformed; prices must not be negative, or they bound nothing from below."""
        if step.kind not in _KINDS:
            return "unknown kind of step"
        if not 0 < step.at < math.inf or not 0 <= step.next < math.inf or not step.bound >= 0:
            return "a figure is out of range or not a number"
        if step.kind in ("priced", "labelled") and not (
            len(step.prices) == len(self.price) and all(0 <= price < math.inf for price in step.prices)
        ):
            return "it needs a non-negative price for each type"
        return ""

    def bound(self, schedule: Schedule, step: ProofStep) -> float:
        """Return the highest lower bound on the price per hour at the step's time that can be proven."""
        if step.kind == "relaxed":
            return self.cheapest(schedule, self.rent_costs(schedule, step.at, [0.0] * len(self.price)))
        extra = list(step.prices)
        due = sum(price * limit for price, limit in zip(extra, self.limit, strict=True))
        # A path over a stage that alone costs as much as is claimed needs no further proof.
        costs = self.rent_costs(schedule, step.at, extra, below=step.bound)
        least = self.cheapest(schedule, costs)
        bound = min(step.bound, least - due - _ROUNDING * due)
        outside = self.problem.host.readers_s > 0 or self.problem.facts[..., SERVED_BYTES].any()
        if not (self.problem.host.device < 0 and outside):  # cores outside the types have no limit
            everything = sum(price * limit for price, limit in zip(self.price, self.limit, strict=True))
            if bound > everything * (1 + _CLOSE):
                return math.inf
        if step.kind == "labelled" and bound < step.bound * (1 - _CLOSE):
            return self.enumerate(schedule, step.at, extra, due, step.bound * (1 - _CLOSE))
        return bound

    def enumerate(
        self, schedule: Schedule, step_s: float, extra: list[float], due: float, cutoff: float
    ) -> float:
        """Return the lowest price that keeps all limits, or `cutoff` if none is below; enumerates device counts."""
        reduced, _ = self.prices(extra)
        ahead = self.ahead(self.rent_costs(schedule, step_s, extra))
        host = self.problem.host
        _, devices, cores = self.rents(schedule, step_s)
        ways: list[dict[Way, float]] = [{(0,) * (len(self.price) + 1): 0.0}]
        for last in range(self.layers):
            here: dict[Way, float] = {}
            for row, device in enumerate(self.device):
                possible = np.isfinite(devices[row, : last + 1, last]) & self.useful(row)[: last + 1, last]
                for first in np.flatnonzero(possible):
                    more = [0] * len(self.price)
                    more[device] += int(devices[row, first, last])
                    beside = int(cores[row, first, last])
                    if host.device >= 0:
                        more[host.device] += beside
                    outside = 0.0 if host.device >= 0 else host.usd_per_hour * beside
                    for before, rate in ways[first].items():
                        used = (*(a + b for a, b in zip(before[:-1], more, strict=True)), before[-1] + 1)
                        paid = rate + outside
                        if schedule.stages and used[-1] > schedule.stages:
                            continue
                        if any(a > b for a, b in zip(used[:-1], self.limit, strict=True)):
                            continue
                        owed = paid + sum(p * n for p, n in zip(reduced, used[:-1], strict=True))
                        if owed + ahead[last + 1] - due - _ROUNDING * due >= cutoff:
                            continue
                        here[used] = min(paid, here.get(used, math.inf))
            ways.append(_undominated(here, bool(schedule.stages)))
        rates = [
            paid + sum(price * count for price, count in zip(self.price, used[:-1], strict=True))
            for used, paid in ways[-1].items()
        ]
        least = min(rates, default=math.inf)
        return least if least < cutoff else cutoff

    def ahead(self, costs: Array) -> Array:
        """Return the cost of the cheapest chain from each boundary on."""
        found = np.full(self.layers + 1, np.inf)
        found[self.layers] = 0.0
        for first in range(self.layers - 1, -1, -1):
            found[first] = np.min(costs[first, first:] + found[first + 1 :])
        return found

    def floor(self, schedule: Schedule) -> float:
        """Return a step time that no plan beats."""
        slowest = 0.0
        for layer in range(self.layers):
            least = math.inf
            for row, device in enumerate(self.device):
                if not self.problem.allowed[layer, device] or not self.useful(row)[layer, layer]:
                    continue
                most = max(1, min(self.problem.max_replicas, self.limit[device]))
                examples = np.full((self.layers, self.layers), self.problem.batch / (most * schedule.micro))
                parts = np.stack([self.at_call(row, which, examples) for which in (COMPUTE, IN, OUT)])
                least = min(least, float(self.calls(schedule, parts)[layer, layer]))
            slowest = max(slowest, least)
        return slowest


def _covers(schedule: Schedule, micro: int, stages: int) -> bool:
    """Return whether a schedule allows every plan with these micro-batches and stages at least what it may use.

    A plan with fewer stages has a smaller share of a step reserved for the way through all of them.
    """
    if schedule.micro != micro or schedule.w_max > micro - 1 or schedule.w_sum > stages:
        return False
    if schedule.in_flight > min(micro, 2 * stages - 1):
        return False
    return schedule.stages == 0 or schedule.stages >= stages


def _undominated(ways: dict[Way, float], counts_stages: bool) -> dict[Way, float]:
    """Return the ways that no other way dominates in every type and in what else it pays."""
    kept: dict[Way, float] = {}
    for way in sorted(ways, key=lambda one: (sum(one[:-1]), ways[one], one[-1])):
        size = len(way) if counts_stages else len(way) - 1
        if not any(
            kept[other] <= ways[way] and all(a <= b for a, b in zip(other[:size], way[:size], strict=True))
            for other in kept
        ):
            kept[way] = ways[way]
    return kept
