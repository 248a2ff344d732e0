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

from berth.plan.problem import (
    COMPUTE,
    EXAMPLE_BYTES,
    FORBIDDEN,
    HAS_TABLES,
    HELD_BYTES,
    IN,
    OPTIMISER_S,
    OUT,
    SERVED_BYTES,
    SERVER_CPU,
    SERVER_NIC,
    SHARDED_BYTES,
    SYNC_BYTES,
    pipelined,
)

if TYPE_CHECKING:
    from berth.plan.plan import Plan
    from berth.plan.problem import Problem, Schedule
    from berth.plan.search.exact import Certificate, ProofPart, ProofStep

_CLOSE = 1e-7  # relative tolerance between the two implementations
_ROUNDING = 1e-12  # of a sum of prices on limits, which a difference may cancel
_EQUAL = 1e-9  # step times that agree to nine digits are equal
_KINDS = ("relaxed", "priced", "labelled", "work")
_ROUNDS = 10_000

Array = np.ndarray
Way = tuple[int, ...]  # devices used of each type, then stages


def check(problem: Problem, plan: Plan | None, certificate: Certificate) -> list[str]:
    """Return what is wrong with a plan and its proof; empty if both hold."""
    checker = _Checker(problem)
    found = [] if plan is None else checker.check_plan(plan, certificate.best)
    return found + checker.check_proof(certificate)


class _Checker:
    """Computes costs and bounds from the problem's numbers."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layers = len(problem.layers)
        self.price = [one.usd_per_hour for one in problem.types]
        self.limit = [one.limit for one in problem.types]
        self.fixed = problem.fixed_usd_per_hour
        self.longest = problem.batch / problem.throughput
        self.device = [choice.device for choice in problem.choices]
        first, last = np.indices((self.layers, self.layers))
        self.forward = first <= last  # stages first..last that exist
        self.inner_left, self.inner_right = first > 0, last + 1 < self.layers
        self.at_front = first == 0
        self.sums = [self._sums(row) for row in range(len(problem.choices))]
        self.parts = [self.three(row, problem.grid) for row in range(len(problem.choices))]
        self.arcs: dict[tuple[Schedule, float], tuple[Array, Array, Array]] = {}

    def _sums(self, choice: int) -> tuple[Array, Array]:
        """Return the facts and curves of every stage first..last, added layer by layer."""
        facts, curves = self.problem.facts[choice], self.problem.curves[choice]
        return _over_stages(facts), _over_stages(curves)

    # --- what a stage needs ---

    def data(self, choice: int, point: float | Array, which: int) -> Array:
        """Return the crossings of every stage for a call of `point` examples, in (IN) or out (OUT)."""
        cross = self.problem.cross[choice]
        before, after = (0, 1) if which == IN else (1, 0)
        left = np.where(self.inner_left, np.roll(cross[:, before], 1)[:, None], 0.0)
        right = np.where(self.inner_right, cross[:, after][None, :], 0.0)
        boundaries = self.inner_left * 1.0 + self.inner_right
        return (left + right) * point + boundaries * self.problem.message_s

    def three(self, choice: int, points: Array) -> Array:
        """Return compute, in and out of every stage at points of the grid: [3, first, last, point]."""
        _, curves = self.sums[choice]
        c = curves[:, :, COMPUTE]
        i = curves[:, :, IN] + np.stack([self.data(choice, float(at), IN) for at in points], axis=-1)
        o = curves[:, :, OUT] + np.stack([self.data(choice, float(at), OUT) for at in points], axis=-1)
        return np.stack([c, i, o])

    def calls(self, schedule: Schedule, parts: Array) -> Array:
        """Return the seconds of all calls of a step from compute, in and out of one."""
        weighted: Array = schedule.w_max * parts.max(axis=0) + schedule.w_sum * parts.sum(axis=0)
        return weighted

    def largest_call(self, schedule: Schedule, choice: int, rest: Array) -> Array:
        """Return the most examples per call of every stage so that its calls take at most `rest`; 0: none."""
        grid = self.problem.grid
        parts = self.parts[choice]
        taken = self.calls(schedule, parts)
        fits = taken <= rest[..., None] * (1 + _EQUAL)
        count = np.where(
            fits.all(axis=-1), len(grid), fits.argmin(axis=-1)
        )  # points that fit, from the first on
        low = np.clip(count - 1, 0, len(grid) - 2)  # the segment; beyond the grid its slope continues
        base = np.take_along_axis(parts, low[None, ..., None], axis=-1)[..., 0]
        rise = np.take_along_axis(parts, low[None, ..., None] + 1, axis=-1)[..., 0] - base
        slope = rise / (grid[low + 1] - grid[low])
        per_example = schedule.w_max * slope + schedule.w_sum * slope.sum(axis=0)
        spare = rest - (schedule.w_max * base + schedule.w_sum * base.sum(axis=0))
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.where(per_example > 0, spare / per_example, np.inf).min(axis=0)
        top = np.where(count == len(grid), np.inf, grid[low + 1])
        most = np.minimum(grid[low] + np.maximum(more, 0.0), top)
        most = np.where(count == len(grid), np.maximum(most, grid[-1]), most)
        return np.where(count == 0, 0.0, most)

    def ring(self, choice: int, replicas: Array, bytes_: Array) -> Array:
        """Return the seconds of the all-reduce."""
        ring = self.problem.ring[self.device[choice]]
        row = np.minimum(np.where(np.isfinite(replicas), replicas, 1), ring.shape[1] - 1).astype(int)
        return np.where(bytes_ > 0, bytes_ * ring[0][row] + ring[1][row], 0.0)

    def held(self, schedule: Schedule, choice: int) -> Array:
        """Return the fewest replicas of every stage whose memory holds it."""
        facts, _ = self.sums[choice]
        memory = self.problem.types[self.device[choice]].memory_bytes
        if memory is None:
            return np.ones((self.layers, self.layers))
        in_flight = facts[..., EXAMPLE_BYTES] * self.problem.batch * schedule.in_flight / schedule.micro
        divided, spare = facts[..., SHARDED_BYTES] + in_flight, memory - facts[..., HELD_BYTES]
        with np.errstate(divide="ignore", invalid="ignore"):
            count = np.where(spare > 0, np.ceil(divided / spare * (1 - _EQUAL)), np.inf)
        return np.where(divided <= spare, 1.0, np.maximum(count, 1.0))

    def replicas(self, schedule: Schedule, choice: int, step_s: float) -> Array:
        """Return the fewest replicas of every stage at a step time, never more than the solver may count."""
        facts, _ = self.sums[choice]
        most = np.full(
            (self.layers, self.layers), min(self.problem.max_replicas, self.limit[self.device[choice]])
        )
        most = np.where(
            facts[..., HAS_TABLES] > 0.5, np.minimum(most, self.problem.choices[choice].cap), most
        )
        count = self.held(schedule, choice)
        count[~self.forward | (facts[..., FORBIDDEN] > 0.5) | (count > most)] = np.inf
        for _ in range(_ROUNDS):
            rest = step_s - facts[..., OPTIMISER_S] - self.ring(choice, count, facts[..., SYNC_BYTES])
            call = np.where(rest > 0, self.largest_call(schedule, choice, np.maximum(rest, 0.0)), 0.0)
            with np.errstate(divide="ignore"):
                wanted = np.ceil(self.problem.batch / (schedule.micro * call) * (1 - _EQUAL))
            more = np.where(np.isfinite(count), np.maximum(count, wanted), np.inf)
            more[more > most] = np.inf
            if np.array_equal(more, count):
                return count
            count = more
        return count

    def at_call(self, choice: int, which: int, examples: Array) -> Array:
        """Return a curve of every stage for calls of `examples`."""
        _, curves = self.sums[choice]
        grid = self.problem.grid
        low = np.clip(np.searchsorted(grid, examples, side="right") - 1, 0, len(grid) - 2)
        start = np.take_along_axis(curves[:, :, which], low[..., None], axis=-1)[..., 0]
        end = np.take_along_axis(curves[:, :, which], low[..., None] + 1, axis=-1)[..., 0]
        return start + (end - start) * (examples - grid[low]) / (grid[low + 1] - grid[low])

    def load(self, schedule: Schedule, choice: int, replicas: Array) -> Array:
        """Return the core-seconds of servers for one step of every stage."""
        count = np.where(np.isfinite(replicas), replicas, 1.0)
        examples = self.problem.batch / (count * schedule.micro)
        cpu, nic = (self.at_call(choice, which, examples) for which in (SERVER_CPU, SERVER_NIC))
        return count * schedule.micro * np.maximum(cpu, nic)

    def rents(self, schedule: Schedule, step_s: float) -> tuple[Array, Array, Array]:
        """Return replicas, devices and host cores, [choice, first, last]; infinite where a stage is impossible."""
        key = schedule, step_s
        if key not in self.arcs:
            found = [self._rents(schedule, row, step_s) for row in range(len(self.problem.choices))]
            self.arcs = {key: tuple(np.stack(part) for part in zip(*found, strict=True))}  # type: ignore[dict-item]
        return self.arcs[key]

    def _rents(self, schedule: Schedule, choice: int, step_s: float) -> tuple[Array, Array, Array]:
        host, device = self.problem.host, self.device[choice]
        facts, _ = self.sums[choice]
        replicas = self.replicas(schedule, choice, step_s)
        unit = self.problem.types[device].unit
        devices = replicas if unit == 1 else np.ceil(replicas / unit) * unit
        served = facts[..., SERVED_BYTES]
        need = np.maximum(self.load(schedule, choice, replicas) / step_s, served / host.memory_bytes)
        servers = np.where(served > 0, np.maximum(1.0, np.ceil(need * (1 - _EQUAL))), 0.0)
        cores = np.ceil(servers / host.unit) * host.unit
        if host.readers_s > 0:
            reading = max(1.0, math.ceil(host.readers_s / step_s * (1 - _EQUAL)))
            cores = cores + np.where(self.at_front, math.ceil(reading / host.unit) * host.unit, 0.0)
        too_many = devices + (cores if host.device == device else 0.0) > self.limit[device]
        if host.device >= 0:
            too_many |= cores > self.limit[host.device]
        gone = too_many | ~np.isfinite(replicas)
        return tuple(np.where(gone, np.inf, part) for part in (replicas, devices, cores))  # type: ignore[return-value]

    def work(self, schedule: Schedule, choice: int, step_s: float) -> Array:
        """Return a lower bound on the price of every stage x its step time, at `step_s` or faster."""
        facts, _ = self.sums[choice]
        grid, batch = self.problem.grid, self.problem.batch
        most = self.largest_call(schedule, choice, (step_s - facts[..., OPTIMISER_S]) * (1 + _EQUAL))
        most = np.minimum(most, batch / schedule.micro)
        never = (most <= 0) | (facts[..., FORBIDDEN] > 0.5) | ~self.forward
        most = np.where(never, 1.0, most)
        least = np.full((3, self.layers, self.layers), np.inf)
        parts = self.parts[choice]
        for point in range(1, len(grid)):
            each = (
                schedule.w_max * parts[..., point] + schedule.w_sum * parts[..., point].sum(axis=0)
            ) / grid[point]
            least = np.where(grid[point] < most, np.minimum(least, each), least)
        ends = np.stack(
            [
                self.at_call(choice, COMPUTE, most),
                self.at_call(choice, IN, most) + self.data(choice, most, IN),
                self.at_call(choice, OUT, most) + self.data(choice, most, OUT),
            ]
        )
        least = np.minimum(least, (schedule.w_max * ends + schedule.w_sum * ends.sum(axis=0)) / most)
        cost = self.price[self.device[choice]] * batch / schedule.micro * least.max(axis=0)
        serving = batch * np.maximum(
            self.at_call(choice, SERVER_CPU, most), self.at_call(choice, SERVER_NIC, most)
        )
        cores = np.where(facts[..., SERVED_BYTES] > 0, serving / most, 0.0)
        cores = cores + np.where(self.at_front, self.problem.host.readers_s, 0.0)
        return np.where(never, np.inf, cost + self.problem.host.usd_per_hour * cores)

    def useful(self, choice: int) -> Array:
        """Return the stages for which a choice differs from the first one of its type."""
        facts, _ = self.sums[choice]
        is_first = choice == self.device.index(self.device[choice])
        return np.ones((self.layers, self.layers), bool) if is_first else facts[..., HAS_TABLES] > 0.5

    def cheapest(self, schedule: Schedule, costs: Array) -> float:
        """Return the cost of the cheapest chain of stages; `costs` are those of each stage, [first, last]."""
        rows = schedule.stages or 1
        ends = np.full((rows + 1, self.layers + 1), np.inf)  # at most this many stages, layers before
        ends[:, 0] = 0.0
        for last in range(self.layers):
            for row in range(1, rows + 1):
                heads = ends[row - 1 if schedule.stages else row, : last + 1]
                ends[row, last + 1] = np.min(heads + costs[: last + 1, last])
        return float(ends[rows, self.layers])

    def prices(self, extra: list[float]) -> tuple[list[float], float]:
        """Return prices of the types and of a host core, with prices on limits."""
        host = self.problem.host
        core = host.usd_per_hour + (extra[host.device] if host.device >= 0 else 0.0)
        return [price + more for price, more in zip(self.price, extra, strict=True)], core

    def rent_costs(
        self, schedule: Schedule, step_s: float, extra: list[float], below: float = math.inf
    ) -> Array:
        """Return the lowest price of every stage at a step time, with prices on limits, of those that cost less."""
        (reduced, core), (plain, plain_core) = self.prices(extra), self.prices([0.0] * len(extra))
        _, devices, cores = self.rents(schedule, step_s)
        found = []
        for row, device in enumerate(self.device):
            count, beside = _finite(devices[row]), _finite(cores[row])
            possible = self.useful(row) & np.isfinite(devices[row])
            possible &= plain[device] * count + plain_core * beside < below
            found.append(np.where(possible, reduced[device] * count + core * beside, np.inf))
        return np.min(found, axis=0)

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
            parts = np.stack([self.at_call(row, which, examples) for which in (COMPUTE, IN, OUT)])
            parts[1] += self.data(row, examples, IN)
            parts[2] += self.data(row, examples, OUT)
            step_s = self.calls(schedule, parts) + facts[..., OPTIMISER_S]
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
        if slowest > self.longest * (1 + 2 * _EQUAL):
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
        at = self.longest * (1 + _EQUAL)
        for number, step in enumerate(part.steps, 1):
            if step.at < at * (1 - _EQUAL):
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


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _over_stages(values: Array) -> Array:
    """Return the sums over layers first..last, [first, last, ...], added from the front of each stage."""
    layers = len(values)
    sums = np.zeros((layers, *values.shape))
    for first in range(layers):
        sums[first, first:] = np.cumsum(values[first:], axis=0)
    return sums


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
