"""Finds the optimum with a proof: shortest paths at a falling sequence of stage times.

R(tau), the least price per hour of a plan whose stages all take at most tau, never rises with tau. So every
plan with a stage time in (next, tau] costs at least next * (fixed + R(tau)); with the best cost found so far,

    next = best / (fixed + R(tau))

is how far one shortest path reaches: no plan in between is cheaper than the best. The chain of such steps goes from
the slowest stage time allowed down until no plan is fast enough, or until the work that every faster plan pays costs
as much as the best. For limits that bind over several stages see berth.plan.limits. The steps are the certificate;
berth.plan.certificate checks them without any of this code.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.plan.arcs import ArcLists
from berth.plan.arrays import COMPUTE_SERIAL, COMPUTE_SHARED, DATA_SERIAL, DATA_SHARED
from berth.plan.evaluate import evaluate, provisioned
from berth.plan.limits import FOUND, NONE, TOO_MANY, labelled, priced
from berth.plan.plan import cheapest
from berth.plan.problem import Problem
from berth.plan.provision import SLACK
from berth.plan.search.method import Budget, Outcome, Progress
from berth.plan.shortest_path import min_rate, min_work
from berth.plan.warmup import load_arc_kernels, load_kernels

Assignments = NDArray[np.int64]
Floats = NDArray[np.float64]

RELAXED, PRICED, LABELLED, WORK = "relaxed", "priced", "labelled", "work"

_SEEDS, _SEED_STEP = 48, 0.82
_SUBGRADIENT_STEPS = 40
# (labels kept, labels looked at) at one stage time: a fraction of a second, or a few seconds
_LABELS = ((30_000, 30_000_000), (200_000, 400_000_000))
_BEAM = 100  # labels kept at each end of a stage when only a good plan is needed
_REACH = (0.05, 0.01, 0.002)  # step lengths, as a share of tau, that labels should reach
_ENOUGH = 0.01  # a jump of prices alone that makes labels unnecessary
_NEAR = 1.02  # plans within this factor of the best are provisioned in full
_WORK_EVERY = 0.01  # distance, as a share of tau, between two bounds by the work of all faster plans
_REMEMBERED = 300  # assignments tried first when a problem is solved again for another throughput
_REUSE_STEP = 1e-4  # a known bound is reused if its step is at least this share of tau
_MANY = 500_000  # layers^2 x types above which arcs are listed (berth.plan.arcs)
_FORCED = 0.002  # the step if nothing proves a longer one: the bound gets worse
_LATE_GAP = 0.008


@dataclass(frozen=True, slots=True)
class ProofStep:
    """All plans with a stage time in (next, tau] pay at least `bound` per hour; `prices` on limits prove it."""

    tau: float
    next: float
    bound: float
    kind: str
    prices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proof that no plan costs less than `lower`, in (dollars per hour x seconds) per example."""

    best: float
    lower: float
    steps: tuple[ProofStep, ...]


class WarmStart:
    """Bounds at stage times and good assignments, shared by problems that differ only in throughput."""

    def __init__(self) -> None:
        self.taus: list[float] = []  # rising
        self.bounds: list[tuple[float, str, tuple[float, ...]]] = []  # bound, kind, prices
        self.assignments: dict[bytes, Assignments] = {}

    def add_bound(self, tau: float, bound: float, kind: str, prices: tuple[float, ...]) -> None:
        """Record that no plan with a stage time of at most tau pays less than `bound` per hour."""
        place = bisect_left(self.taus, tau)
        self.taus.insert(place, tau)
        self.bounds.insert(place, (bound, kind, prices))

    def bound_above(self, tau: float) -> tuple[float, float, str, tuple[float, ...]] | None:
        """Return the nearest stage time above tau with a known bound, and that bound."""
        place = bisect_left(self.taus, tau)
        return (self.taus[place], *self.bounds[place]) if place < len(self.taus) else None


@dataclass
class _ProofSearch:
    """The state of a search."""

    problem: Problem
    seconds: float
    progress: Progress | None = None
    best: float = np.inf
    assignment: Assignments | None = None
    lower: float = np.inf
    paths: int = 0
    known: WarmStart = field(default_factory=WarmStart)
    considered: set[bytes] = field(default_factory=set)
    curve: list[tuple[int, float]] = field(default_factory=list)
    steps: list[ProofStep] = field(default_factory=list)
    started: float = field(default_factory=time.process_time)

    def __post_init__(self) -> None:
        self.arrays = self.problem.arrays
        self.prices = np.zeros(len(self.problem.types))
        arcs = len(self.problem.layers) ** 2 * len(self.problem.types)
        self.arc_lists: ArcLists | None = None
        self.arcs = arcs
        self.many = arcs > _MANY
        self.tries = max(12, min(_SUBGRADIENT_STEPS, 40_000_000 // arcs))
        self.everything = float(np.sum(self.arrays.price * self.arrays.limit)) * (1 + SLACK)

    @property
    def is_late(self) -> bool:
        """Whether half of the time is over; then a small gap is accepted."""
        return time.process_time() - self.started > self.seconds / 2

    @property
    def target(self) -> float:
        """The cost that the bound must reach."""
        return self.best * (1 - _LATE_GAP) if self.is_late else self.best

    def try_assignment(self, assignment: Assignments) -> None:
        """Evaluate an assignment, and keep it if it is the best so far."""
        name = assignment.tobytes()
        if name in self.considered:
            return
        self.considered.add(name)
        self.known.assignments[name] = assignment.copy()
        cost = provisioned(assignment, self.arrays)[0]
        if cost < self.best:
            self.best, self.assignment = cost, assignment.copy()
            self.curve.append((self.paths, cost * self.problem.epochs * self.problem.samples / 3600))

    def path(self, tau: float) -> tuple[float, bool]:
        """Return the lowest rate at tau with limits per stage, and whether its path keeps all limits."""
        self.paths += 1
        if self.arc_lists is not None and self.best < np.inf:
            rate, assignment, used = self.arc_lists.min_rate(tau, self.best)
        else:
            rate, assignment, used = min_rate(self.arrays, tau)
        if rate == np.inf or assignment is None:
            return rate, True
        if (self.arrays.fixed + rate) * tau < self.best * _NEAR:
            self.try_assignment(assignment)
        return rate, bool(np.all(used <= self.arrays.limit))

    def try_known(self) -> None:
        """Start with the assignments that were good for another throughput."""
        plans = np.array(list(self.known.assignments.values())[-_REMEMBERED:])
        cost = evaluate(plans, self.arrays)[0]
        row = int(np.argmin(cost))
        self.considered.update(plan.tobytes() for plan in plans)
        if cost[row] < np.inf:
            self.best, self.assignment = float(cost[row]), plans[row].copy()

    def find_start(self) -> None:
        """Find a good plan: the better it is, the longer are the steps of the proof."""
        if self.known.assignments:
            self.try_known()
            if self.best < np.inf:
                return
        tau, joint = self.arrays.slowest, False
        for _ in range(_SEEDS):
            rate, keeps = self.path(tau)
            if rate == np.inf:
                break
            if not keeps:
                if self.bound_by_prices(tau, np.inf) == np.inf:
                    break
                self.beam(tau)
            joint |= not keeps
            tau *= _SEED_STEP
            if min_work(self.arrays, tau) >= self.best:
                break
        self.prices[:] = 0.0
        if joint:
            self.improve()

    def improve(self) -> None:
        """Change single layers and single boundaries while that helps."""
        while self.assignment is not None:
            plans = neighbours(self.assignment, len(self.problem.types))
            cost = evaluate(plans, self.arrays)[0]
            row = int(np.argmin(cost))
            if not cost[row] < self.best * (1 - 1e-12):
                return
            self.best, self.assignment = float(cost[row]), plans[row].copy()

    def find_any(self) -> bool:
        """Find any plan that keeps the limits; if there is none, add the one step that proves it."""
        tau = self.arrays.slowest
        if self.path(tau)[0] == np.inf:
            self.steps.append(ProofStep(tau * (1 + SLACK), 0.0, np.inf, RELAXED))
            return False
        if self.bound_by_prices(tau, np.inf) == np.inf:
            prices = tuple(float(one) for one in self.prices)
            self.steps.append(ProofStep(tau * (1 + SLACK), 0.0, np.inf, PRICED, prices))
            return False
        self.prices[:] = 0.0
        outcome, _, assignment = labelled(self.arrays, tau, self.prices, np.inf, *_LABELS[1], 0)
        if outcome == NONE:
            none = (0.0,) * len(self.prices)
            self.steps.append(ProofStep(tau * (1 + SLACK), 0.0, np.inf, LABELLED, none))
        elif outcome == FOUND:
            self.try_assignment(assignment)
            self.improve()
        return outcome == FOUND

    def beam(self, tau: float) -> None:
        """Try the best plan that keeps the limits among the most promising paths."""
        width = max(4, _BEAM // max(1, self.arcs // 4000))
        outcome, _, assignment = labelled(self.arrays, tau, self.prices, np.inf, *_LABELS[1], width)
        if outcome == FOUND:
            self.try_assignment(assignment)

    def bound_by_prices(self, tau: float, target: float) -> float:
        """Return the bound at tau by prices on the limits."""
        bound, self.prices, kept_rate, kept = priced(self.arrays, tau, self.prices, target, self.tries)
        self.paths += self.tries
        if kept_rate < np.inf:
            self.try_assignment(kept)
        return np.inf if bound > self.everything else float(bound)

    def bound_with_limits(self, tau: float) -> tuple[float, str]:
        """Return the bound at tau if the shortest path exceeds a limit, and the kind of its proof."""
        fixed = self.arrays.fixed
        bound = self.bound_by_prices(tau, self.target / (tau * (1 - _REACH[0])) - fixed)
        if self.target <= tau * (1 - _ENOUGH) * (fixed + bound):
            return bound, PRICED
        for reach, labels in [(reach, _LABELS[0]) for reach in _REACH] + [(_REACH[-1], _LABELS[1])]:
            if self.is_late:
                break
            cutoff = self.target / (tau * (1 - reach)) - fixed
            outcome, rate, assignment = labelled(self.arrays, tau, self.prices, cutoff, *labels, 0)
            if outcome == TOO_MANY:
                continue
            if outcome == FOUND:
                self.try_assignment(assignment)
                return float(rate), LABELLED
            return cutoff, LABELLED
        return bound, PRICED

    def prove(self) -> None:
        """Step down from the slowest stage time until no cheaper plan can remain."""
        tau = self.arrays.slowest * (1 + SLACK)
        self.arc_lists = ArcLists(self.arrays) if self.many else None
        floor = self.arrays.fixed * min_stage_time_s(self.problem)
        seen = np.inf
        while True:
            if tau < seen * (1 - _WORK_EVERY):
                seen, work = tau, floor + min_work(self.arrays, tau)
                if work >= self.target * (1 - SLACK):
                    self.steps.append(ProofStep(tau, 0.0, work, WORK))
                    self.lower = min(self.lower, work)
                    return
            at, bound, kind, prices = self.bound(tau)
            if bound == np.inf:
                self.steps.append(ProofStep(at, 0.0, np.inf, kind, prices))
                return
            reached = self.target / (self.arrays.fixed + bound)
            if reached > tau * (1 - SLACK):
                reached = tau * (1 - _FORCED)  # not proven: the bound gets worse
            tau = reached * (1 - 2 * SLACK)
            self.steps.append(ProofStep(at, tau, bound, kind, prices))
            self.lower = min(self.lower, tau * (self.arrays.fixed + bound))
            if self.progress is not None:
                self.progress(self.paths, 0, self.best)

    def bound(self, tau: float) -> tuple[float, float, str, tuple[float, ...]]:
        """Return a bound that holds at tau, and the stage time (tau or slower) for which it was proven."""
        known = self.known.bound_above(tau)
        if known is not None and self.target <= tau * (1 - _REUSE_STEP) * (self.arrays.fixed + known[1]):
            return known
        bound, keeps = self.path(tau)
        kind = RELAXED
        if not keeps:
            bound, kind = self.bound_with_limits(tau)
        prices = tuple(float(one) for one in self.prices) if kind in (PRICED, LABELLED) else ()
        self.known.add_bound(tau, bound, kind, prices)
        return tau, bound, kind, prices


def exact(
    problem: Problem, budget: Budget, progress: Progress | None = None, known: WarmStart | None = None
) -> Outcome:
    """Return the optimum and its certificate; only the seconds of the budget count, not its evaluations.

    `known` carries over the results for the same problem at other throughputs.
    """
    load_kernels()
    if len(problem.layers) ** 2 * len(problem.types) > _MANY:
        load_arc_kernels()
    started = time.process_time()
    search = _ProofSearch(problem, budget.seconds, progress=progress, known=known or WarmStart())
    search.find_start()
    if search.best == np.inf and not search.find_any():
        cpu_s = time.process_time() - started
        proof = Certificate(np.inf, np.inf, tuple(search.steps))
        note = "infeasible" if search.steps else "no plan was found in the time allowed"
        return Outcome("exact", None, search.paths, cpu_s, np.inf if search.steps else 0.0, (), proof, note)
    search.prove()
    scale = problem.epochs * problem.samples / 3600
    lower = min(search.lower, search.best)
    if lower >= search.best * (1 - 1e-8):
        lower = search.best  # equal to nine digits, the precision of stage times
    plan = cheapest(problem, search.assignment)
    assert plan is not None, "the best assignment is feasible"
    return Outcome(
        "exact",
        plan,
        search.paths,
        time.process_time() - started,
        lower_bound_usd=min(lower * scale, plan.cost_usd),  # the product may be higher in the last bit
        curve=tuple(search.curve),
        certificate=Certificate(search.best, lower, tuple(search.steps)),
    )


def min_stage_time_s(problem: Problem) -> float:
    """Return a stage time that no plan can beat at any price."""
    layer, limit = problem.arrays.layer, np.maximum(problem.arrays.limit, 1)[:, None]
    compute = layer[:, :, COMPUTE_SERIAL] + layer[:, :, COMPUTE_SHARED] / limit
    data = layer[:, :, DATA_SERIAL] + layer[:, :, DATA_SHARED] / limit
    time_s = np.where(problem.allowed.T, np.maximum(compute, data), np.inf)
    return float(time_s.min(axis=0).max())


def neighbours(assignment: Assignments, num_types: int) -> Assignments:
    """Return every plan that differs in one layer, or by one moved boundary between two stages."""
    layers = len(assignment)
    plans = []
    for layer in range(layers):
        for device in range(num_types):
            if device != assignment[layer]:
                plan = assignment.copy()
                plan[layer] = device
                plans.append(plan)
    edges = [layer for layer in range(1, layers) if assignment[layer] != assignment[layer - 1]]
    for edge in edges:
        for other in range(layers):
            plan = assignment.copy()
            if other < edge:
                plan[other:edge] = assignment[edge]
            else:
                plan[edge : other + 1] = assignment[edge - 1]
            plans.append(plan)
    return np.array(plans or [assignment])


METHODS: dict[str, Any] = {"exact": exact}
