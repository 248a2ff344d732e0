"""Finds the optimum with a proof: shortest paths at a falling sequence of step times, for every schedule.

R(T), the least price per hour of a plan whose stages all take at most T, never rises with T. So every plan with a
step time in (next, T] costs at least next * (fixed + R(T)); with the best cost found so far,

    next = best / (fixed + R(T))

is how far one shortest path reaches: no plan in between is cheaper than the best. The chain of such steps goes from
the longest step allowed down until no plan is fast enough, or until the work that every faster plan pays costs as much
as the best; work and the fixed price of a step time together also rule out a range of step times at once. Pipelined
plans have a chain for each number of micro-batches and each limit on the number of stages; the last chains cover any
larger number, as if each stage were allowed a larger share of a step than it is. For limits that bind over several
stages see berth.plan.limits. The steps are the certificate; berth.plan.certificate checks them without any of this
code.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.plan.limits import FOUND, TOO_MANY, Arcs, labelled, list_arcs, priced
from berth.plan.many_layers import MANY, layer_work, min_rate_many, min_work_many
from berth.plan.near_arcs import RANGE, NearArcs, keep_near, min_rate_near
from berth.plan.plan import Cut, plan_at, slots_of
from berth.plan.problem import Problem, Schedule, pipelined
from berth.plan.provision import swept
from berth.plan.search.method import Budget, Outcome, Progress
from berth.plan.shortest_path import min_rate, min_step, min_work
from berth.plan.stage import SLACK
from berth.plan.warmup import load_kernels

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RELAXED, PRICED, LABELLED, WORK = "relaxed", "priced", "labelled", "work"

_SEEDS, _MAX_SEEDS, _SEED_STEP = 48, 400, 0.82
_WORK_SEEDS = 4  # seeds between two bounds by work
_START_STAGES = 3  # plans with up to this many stages are tried before anything is proven
_SUBGRADIENT_STEPS = 400
# (labels kept, labels looked at) at one step time: a fraction of a second, or a few seconds
_LABELS = ((30_000, 30_000_000), (200_000, 400_000_000))
_BEAM = 100  # labels kept at each boundary when only a good plan is needed
_REACH = (0.05, 0.01, 0.002)  # step lengths, as a share of T, that labels should reach
_ENOUGH = 0.01  # a jump of prices alone that makes labels unnecessary
_NEAR = 1.02  # plans within this factor of the best are sized in full
_WORK_EVERY = 0.08  # distance, as a share of T, between two bounds by the work of all faster plans
_REMEMBERED = 100  # plans tried first when a problem is solved again for another throughput
_REUSE_STEP = 1e-4  # a known bound is reused if its step is at least this share of T
_FORCED = 0.002  # the step if nothing proves a longer one: the bound gets worse
_LATE_GAP = 0.008
_ABOVE_ALL = 1e-6  # a bound that exceeds the price of all devices by this share proves that no plan exists


@dataclass(frozen=True, slots=True)
class ProofStep:
    """All plans with a step time in (next, at] pay at least `bound` per hour; `prices` on limits prove it.

    The bound of a step by work is the cost of a training step instead, in dollars per hour x seconds.
    """

    at: float
    next: float
    bound: float
    kind: str
    prices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ProofPart:
    """The steps for the plans of one schedule; stages = 0 in it covers all plans with `w_sum` stages or more."""

    schedule: Schedule
    steps: tuple[ProofStep, ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proof that no plan costs less than `lower`, in dollars per hour x seconds of one step."""

    best: float
    lower: float
    parts: tuple[ProofPart, ...]

    @property
    def steps(self) -> int:
        """Steps of all parts."""
        return sum(len(part.steps) for part in self.parts)


class WarmStart:
    """Bounds at step times and good plans, shared by problems that differ only in throughput."""

    def __init__(self) -> None:
        self.times: dict[Schedule, list[float]] = {}  # rising
        self.bounds: dict[Schedule, list[tuple[float, str, tuple[float, ...]]]] = {}  # bound, kind, prices
        self.plans: dict[tuple[Schedule, bytes], Ints] = {}

    def add_bound(
        self, schedule: Schedule, at: float, bound: float, kind: str, prices: tuple[float, ...]
    ) -> None:
        """Record that no plan with a step of at most `at` pays less than `bound` per hour."""
        times, bounds = self.times.setdefault(schedule, []), self.bounds.setdefault(schedule, [])
        place = bisect_left(times, at)
        times.insert(place, at)
        bounds.insert(place, (bound, kind, prices))

    def bound_above(
        self, schedule: Schedule, at: float
    ) -> tuple[float, float, str, tuple[float, ...]] | None:
        """Return the nearest step time above with a known bound, and that bound."""
        times = self.times.get(schedule, [])
        place = bisect_left(times, at)
        return (times[place], *self.bounds[schedule][place]) if place < len(times) else None


@dataclass
class _ProofSearch:
    """The state of a search."""

    problem: Problem
    seconds: float
    progress: Progress | None = None
    known: WarmStart = field(default_factory=WarmStart)
    best: float = np.inf
    found: tuple[Schedule, list[Cut], float] | None = None  # schedule, stages, step time to size for
    lower: float = np.inf
    paths: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    parts: list[ProofPart] = field(default_factory=list)
    near: dict[Schedule, NearArcs] = field(default_factory=dict)
    added: dict[Schedule, Floats] = field(default_factory=dict)  # least work of layers, where there are many
    started: float = field(default_factory=time.process_time)

    def __post_init__(self) -> None:
        self.arrays = self.problem.arrays
        self.prices = np.zeros(len(self.problem.types))
        arcs = len(self.problem.layers) ** 2 * len(self.problem.choices)
        self.tries = max(12, min(_SUBGRADIENT_STEPS, 40_000_000 // arcs))
        self.width = max(4, _BEAM // max(1, arcs // 4000))
        self.everything = self.problem.most_usd_per_hour * (1 + _ABOVE_ALL)

    @property
    def is_late(self) -> bool:
        """Whether half of the time is over; then a small gap is accepted."""
        return time.process_time() - self.started > self.seconds / 2

    @property
    def target(self) -> float:
        """The cost that the bound must reach."""
        return self.best * (1 - _LATE_GAP) if self.is_late else self.best

    def try_stages(self, schedule: Schedule, stages: Ints, at: float) -> None:
        """Size stages at their cheapest step time up to `at`, and keep them if they are the best so far."""
        if self.problem.micro:
            schedule = pipelined(schedule.micro, len(stages), len(stages))
        self.known.plans[schedule, stages.tobytes()] = stages
        cost, step_s = swept(self.arrays, slots_of(schedule), stages, min(at, self.arrays.slowest))
        if cost < self.best:
            self.best = cost
            self.found = schedule, [(int(a), int(b), int(c)) for a, b, c in stages], step_s
            steps = self.problem.epochs * self.problem.samples / self.problem.batch
            self.curve.append((self.paths, cost * steps / 3600))

    def path(self, schedule: Schedule, at: float, most: float | None = None) -> tuple[float, bool]:
        """Return the lowest rate at a step time with limits per stage, and whether its path keeps all limits.

        If `most` is given, paths that cost as much or more are not followed.
        """
        self.paths += 1
        rate, stages, used = self.min_rate(schedule, at, most)
        if rate == np.inf:
            return rate, True
        if (self.arrays.fixed + rate) * at < self.best * _NEAR or self.best == np.inf:
            self.try_stages(schedule, stages, at)
        return rate, bool(np.all(used <= self.arrays.limit))

    def min_rate(self, schedule: Schedule, at: float, most: float | None) -> tuple[float, Ints, Floats]:
        """Return the lowest rate at a step time, its stages and its devices, by the fastest way for the problem."""
        slots = slots_of(schedule)
        if self.has_many_layers(schedule):
            return min_rate_many(
                self.arrays, slots, self.added[schedule], at, np.inf if most is None else most
            )
        if self.best == np.inf or most is not None:
            return min_rate(self.arrays, slots, at, np.inf if most is None else most)
        near = self.near_arcs(schedule, at)
        found = min_rate_near(self.arrays, slots, *near[:3], at)
        return found if found[0] < near.cutoff else min_rate(self.arrays, slots, at, np.inf)

    def min_work(self, schedule: Schedule, at: float) -> float:
        """Return a lower bound on price x step time of plans whose step takes at most `at`."""
        if self.has_many_layers(schedule):
            return float(min_work_many(self.arrays, slots_of(schedule), self.added[schedule], at))
        return float(min_work(self.arrays, slots_of(schedule), at))

    def has_many_layers(self, schedule: Schedule) -> bool:
        """Return whether stages are cut off by the work of their layers, which is computed on first use."""
        if schedule.stages > 0 or len(self.problem.layers) < MANY:
            return False
        if schedule not in self.added:
            self.added[schedule] = layer_work(self.arrays, slots_of(schedule))
        return True

    def near_arcs(self, schedule: Schedule, at: float) -> NearArcs:
        """Return the stages that a plan cheaper than the best can have at a step time."""
        near = self.near.get(schedule)
        if near is None or not near.shortest <= at <= near.longest:
            end = at * (1 - RANGE)
            cutoff = _NEAR * self.best / end
            arcs = list_arcs(self.arrays, slots_of(schedule), at, cutoff)
            near = NearArcs(*keep_near(self.arrays, arcs, cutoff), at, end, cutoff)
            self.near[schedule] = near
        return near

    def find_start(self) -> None:
        """Find a good plan: the better it is, the longer are the steps of the proof."""
        for schedule, name in list(self.known.plans)[-_REMEMBERED:]:
            self.try_stages(schedule, np.frombuffer(name, np.int64).reshape(-1, 3), np.inf)
        if self.best < np.inf:
            return
        if not self.problem.micro:
            self.seed(self.problem.schedules(0)[0], _SEEDS)
            return
        for stages in range(1, min(_START_STAGES, len(self.problem.layers)) + 1):
            for schedule in self.problem.schedules(stages):
                self.seed(schedule, 1)

    def seed(self, schedule: Schedule, times: int) -> None:
        """Try the cheapest paths at falling step times; more than `times` as long as that pays."""
        at = self.arrays.slowest
        for seed in range(_MAX_SEEDS):
            before = self.best
            most = np.inf if times > 1 else 1.5 * self.best / at
            rate, keeps = self.path(schedule, at, most)
            if rate == np.inf:
                break
            if not keeps:
                arcs = self.arcs(schedule, at)
                if self.bound_by_prices(schedule, arcs, at, np.inf) == np.inf:
                    break
                self.beam(schedule, arcs, at)
            at *= _SEED_STEP
            if seed + 1 >= times and (times == 1 or self.best == before):
                break
            if seed % _WORK_SEEDS == 1 and self.min_work(schedule, at) >= self.best:
                break
        self.prices[:] = 0.0

    def arcs(self, schedule: Schedule, at: float) -> Arcs:
        """Return the stages that are possible at a step time and not too expensive to be of use."""
        most = np.inf if self.best == np.inf else 2.0 * self.best / at
        return list_arcs(self.arrays, slots_of(schedule), at, most)

    def beam(self, schedule: Schedule, arcs: Arcs, at: float) -> None:
        """Try the best plan that keeps the limits among the most promising paths."""
        outcome, _, stages = labelled(
            self.arrays, arcs, schedule.stages, self.prices, np.inf, *_LABELS[1], self.width
        )
        if outcome == FOUND:
            self.try_stages(schedule, stages, at)

    def bound_by_prices(self, schedule: Schedule, arcs: Arcs, at: float, target: float) -> float:
        """Return the bound at the arcs' step time by prices on the limits."""
        bound, self.prices, kept_rate, kept = priced(
            self.arrays, arcs, schedule.stages, self.prices, target, self.tries
        )
        self.paths += self.tries
        if kept_rate < np.inf:
            self.try_stages(schedule, kept, at)
        return np.inf if bound > self.everything else float(bound)

    def bound_with_limits(self, schedule: Schedule, at: float) -> tuple[float, str]:
        """Return the bound at a step time if the shortest path exceeds a limit, and the kind of its proof."""
        fixed = self.arrays.fixed
        arcs = self.arcs(schedule, at)
        most = np.inf if self.best == np.inf else 2.0 * self.best / at  # arcs that cost more are not listed
        bound = min(
            most, self.bound_by_prices(schedule, arcs, at, self.target / (at * (1 - _REACH[0])) - fixed)
        )
        if self.best < np.inf and self.target <= at * (1 - _ENOUGH) * (fixed + bound):
            return bound, PRICED
        for reach, labels in [(reach, _LABELS[0]) for reach in _REACH] + [(_REACH[-1], _LABELS[1])]:
            if self.is_late:
                break
            cutoff = min(most, self.target / (at * (1 - reach)) - fixed)
            outcome, rate, stages = labelled(
                self.arrays, arcs, schedule.stages, self.prices, cutoff, *labels, 0
            )
            if outcome == TOO_MANY:
                continue
            if outcome == FOUND:
                self.try_stages(schedule, stages, at)
                return float(rate), LABELLED
            return cutoff, LABELLED
        return bound, PRICED

    def prove(self, schedule: Schedule, forced: bool) -> bool:
        """Step down from the longest step until no cheaper plan can remain; return whether that was proven.

        `forced` steps go on where nothing is proven, and the lower bound gets worse instead.
        """
        at = self.arrays.slowest * (1 + SLACK)
        slots = slots_of(schedule)
        floor = self.arrays.fixed * min_step(self.arrays, slots)
        steps: list[ProofStep] = []
        seen, lower = np.inf, np.inf
        while True:
            if at < seen * (1 - _WORK_EVERY) and self.best < np.inf:
                seen, work = at, self.min_work(schedule, at)
                if floor + work >= self.target * (1 - SLACK):
                    steps.append(ProofStep(at, 0.0, floor + work, WORK))
                    lower = min(lower, floor + work)
                    break
                reached = (self.target - work) / self.arrays.fixed if self.arrays.fixed else np.inf
                if reached < at * (1 - _WORK_EVERY):  # above it, that work and the fixed price are too much
                    reached *= 1 - 2 * SLACK
                    least = self.arrays.fixed * reached + work
                    steps.append(ProofStep(at, reached, least, WORK))
                    at, lower = reached, min(lower, least)
                    continue
            proven_at, bound, kind, prices = self.bound(schedule, at)
            if bound == np.inf:
                steps.append(ProofStep(proven_at, 0.0, np.inf, kind, prices))
                break
            if self.best == np.inf:
                return False
            reached = self.target / (self.arrays.fixed + bound)
            if reached > at * (1 - SLACK):
                if not forced:
                    return False
                reached = at * (1 - _FORCED)  # not proven: the bound gets worse
            at = reached * (1 - 2 * SLACK)
            steps.append(ProofStep(proven_at, at, bound, kind, prices))
            lower = min(lower, at * (self.arrays.fixed + bound))
            if self.progress is not None:
                self.progress(self.paths, 0, self.best)
        self.lower = min(self.lower, lower)
        self.parts.append(ProofPart(schedule, tuple(steps)))
        return True

    def bound(self, schedule: Schedule, at: float) -> tuple[float, float, str, tuple[float, ...]]:
        """Return a bound that holds at a step time, and the one (as long or longer) for which it was proven."""
        known = self.known.bound_above(schedule, at)
        if known is not None and self.target <= at * (1 - _REUSE_STEP) * (self.arrays.fixed + known[1]):
            return known
        bound, keeps = self.path(schedule, at)
        kind = RELAXED
        if not keeps:
            bound, kind = self.bound_with_limits(schedule, at)
        prices = tuple(float(one) for one in self.prices) if kind in (PRICED, LABELLED) else ()
        self.known.add_bound(schedule, at, bound, kind, prices)
        return at, bound, kind, prices

    def prove_all(self) -> bool:
        """Prove every schedule; return whether the proof covers all plans."""
        if not self.problem.micro:
            return self.prove(self.problem.schedules(0)[0], forced=True)
        covered = True
        for stages in range(1, len(self.problem.layers) + 1):
            for schedule in self.problem.schedules(stages):
                covered &= self.prove(schedule, forced=True)
            if stages == len(self.problem.layers):
                break
            before = len(self.parts)
            more = [pipelined(micro, 0, stages + 1) for micro in self.problem.micro]
            if all(self.prove(schedule, forced=self.is_late) for schedule in more):
                break
            del self.parts[before:]
        return covered


def exact(
    problem: Problem, budget: Budget, progress: Progress | None = None, known: WarmStart | None = None
) -> Outcome:
    """Return the optimum and its certificate; only the seconds of the budget count, not its evaluations.

    `known` carries over the results for the same problem at other throughputs.
    """
    load_kernels()
    started = time.process_time()
    search = _ProofSearch(problem, budget.seconds, progress=progress, known=known or WarmStart())
    search.find_start()
    covered = search.prove_all()
    cpu_s = time.process_time() - started
    if search.found is None:
        lower = np.inf if covered else 0.0
        note = "infeasible" if covered else "no plan was found in the time allowed"
        proof = Certificate(np.inf, lower, tuple(search.parts))
        return Outcome("exact", None, search.paths, cpu_s, lower, (), proof, note)
    lower = min(search.lower, search.best)
    if lower >= search.best * (1 - 1e-8):
        lower = search.best  # equal to nine digits, the precision of step times
    plan = plan_at(problem, *search.found)
    scale = problem.epochs * problem.samples / problem.batch / 3600
    return Outcome(
        "exact",
        plan,
        search.paths,
        cpu_s,
        lower_bound_usd=min(lower * scale, plan.cost_usd),  # the product may be higher in the last bit
        curve=tuple(search.curve),
        certificate=Certificate(search.best, lower, tuple(search.parts)),
    )


def min_stage_time_s(problem: Problem) -> float:
    """Return a time per example that no plan can beat at any price."""
    schedules = problem.schedules(1 if problem.micro else 0)
    return min(min_step(problem.arrays, slots_of(one)) for one in schedules) / problem.batch


METHODS: dict[str, Any] = {"exact": exact}
