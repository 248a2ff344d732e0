"""The optimum, with a proof: shortest paths at a falling sequence of stage times.

R(tau), the least price per hour of a plan whose stages all take at most tau, never rises with tau. So every
plan with a stage time in (next, tau] costs at least next * (fixed + R(tau)); with the best cost found so far,

    next = best / (fixed + R(tau))

is how far one shortest path reaches: nothing in between is cheaper than the best. From the slowest stage time
allowed the chain of such steps goes down until no plan is fast enough, or until the work that every faster
plan pays already costs as much as the best. Limits that bind over several stages: see berth.plan.limits.
The steps are the certificate; berth.plan.certificate checks them without any of this code.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.plan.arcs import Narrowing
from berth.plan.evaluate import evaluate, provisioned
from berth.plan.limits import FOUND, NONE, TOO_MANY, labelled, priced
from berth.plan.plan import cheapest
from berth.plan.problem import Problem
from berth.plan.provision import SLACK
from berth.plan.search.method import Budget, Outcome, Progress
from berth.plan.shortest import least_rate, least_work
from berth.plan.warm import load_kernels, load_list_kernels

Types = NDArray[np.int64]
Floats = NDArray[np.float64]

RELAXED, PRICED, LABELLED, WORK = "relaxed", "priced", "labelled", "work"

_SEEDS, _SEED_STEP = 48, 0.82
_SUBGRADIENT_STEPS = 40
# (labels kept, labels looked at) at one stage time: a fraction of a second, or a few seconds
_LABELS = ((30_000, 30_000_000), (200_000, 400_000_000))
_BEAM = 100  # labels kept at each end of a stage when a good plan is all that is wanted
_REACH = (0.05, 0.01, 0.002)  # how far down, as a part of tau, labels are asked to reach
_ENOUGH = 0.01  # a jump of prices alone that is not worth labels
_NEAR = 1.02  # plans within this factor of the best are provisioned in full
_WORK_EVERY = 0.01  # how far down, as a part of tau, between two looks at the work of all faster plans
_REMEMBERED = 300  # assignments tried first when a problem is solved again for another throughput
_FREE = 1e-4  # a known bound is used again if it reaches at least this part of tau farther
_MANY = 500_000  # layers^2 x types from which on stages are listed (berth.plan.arcs)
_FORCED = 0.002  # the step when neither can do it: the gap is stated
_LATE_GAP = 0.008


@dataclass(frozen=True, slots=True)
class Step:
    """All plans with a stage time in (next, tau] pay at least `bound` per hour; `prices` on limits show it."""

    tau: float
    next: float
    bound: float
    kind: str
    prices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proof that nothing costs less than `lower`, in (dollars per hour x seconds) per example."""

    best: float
    lower: float
    steps: tuple[Step, ...]


class Known:
    """What problems that differ in throughput alone have in common: bounds at stage times, good assignments."""

    def __init__(self) -> None:
        self.taus: list[float] = []  # rising
        self.bounds: list[tuple[float, str, tuple[float, ...]]] = []  # bound, kind, prices
        self.assignments: dict[bytes, Types] = {}

    def learn(self, tau: float, bound: float, kind: str, prices: tuple[float, ...]) -> None:
        """No plan with a stage time of at most tau pays less than `bound` per hour."""
        place = bisect_left(self.taus, tau)
        self.taus.insert(place, tau)
        self.bounds.insert(place, (bound, kind, prices))

    def recall(self, tau: float) -> tuple[float, float, str, tuple[float, ...]] | None:
        """The nearest stage time above tau at which a bound is known, and that bound."""
        place = bisect_left(self.taus, tau)
        return (self.taus[place], *self.bounds[place]) if place < len(self.taus) else None


@dataclass
class _Chain:
    """The search under way."""

    problem: Problem
    seconds: float
    progress: Progress | None = None
    best: float = np.inf
    assignment: Types | None = None
    lower: float = np.inf
    paths: int = 0
    known: Known = field(default_factory=Known)
    considered: set[bytes] = field(default_factory=set)
    curve: list[tuple[int, float]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    started: float = field(default_factory=time.process_time)

    def __post_init__(self) -> None:
        self.tables = self.problem.tables
        self.prices = np.zeros(len(self.problem.types))
        arcs = len(self.problem.layers) ** 2 * len(self.problem.types)
        self.narrow: Narrowing | None = None
        self.arcs = arcs
        self.many = arcs > _MANY
        self.tries = max(12, min(_SUBGRADIENT_STEPS, 40_000_000 // arcs))
        self.everything = float(np.sum(self.tables.price * self.tables.limit)) * (1 + SLACK)

    @property
    def late(self) -> bool:
        """Half of the time is over: from here on a small gap will do."""
        return time.process_time() - self.started > self.seconds / 2

    @property
    def goal(self) -> float:
        """What the bound must reach."""
        return self.best * (1 - _LATE_GAP) if self.late else self.best

    def consider(self, assignment: Types) -> None:
        """A path with its cheapest units may be the best plan yet."""
        name = assignment.tobytes()
        if name in self.considered:
            return
        self.considered.add(name)
        self.known.assignments[name] = assignment.copy()
        cost = provisioned(assignment, self.tables)[0]
        if cost < self.best:
            self.best, self.assignment = cost, assignment.copy()
            self.curve.append((self.paths, cost * self.problem.epochs * self.problem.samples / 3600))

    def path(self, tau: float) -> tuple[float, bool]:
        """The least rate at tau with limits per stage, and whether its path keeps all limits."""
        self.paths += 1
        if self.narrow is not None and self.best < np.inf:
            rate, assignment, used = self.narrow.least_rate(tau, self.best)
        else:
            rate, assignment, used = least_rate(self.tables, tau)
        if rate == np.inf or assignment is None:
            return rate, True
        if (self.tables.fixed + rate) * tau < self.best * _NEAR:
            self.consider(assignment)
        return rate, bool(np.all(used <= self.tables.limit))

    def remember(self) -> None:
        """Begins with the assignments that were good for another throughput."""
        plans = np.array(list(self.known.assignments.values())[-_REMEMBERED:])
        cost = evaluate(plans, self.tables)[0]
        row = int(np.argmin(cost))
        self.considered.update(plan.tobytes() for plan in plans)
        if cost[row] < np.inf:
            self.best, self.assignment = float(cost[row]), plans[row].copy()

    def seed(self) -> None:
        """A good plan first: the better it is, the farther each step of the proof reaches."""
        if self.known.assignments:
            self.remember()
            if self.best < np.inf:
                return
        tau, joint = self.tables.slowest, False
        for _ in range(_SEEDS):
            rate, keeps = self.path(tau)
            if rate == np.inf:
                break
            if not keeps:
                if self.price(tau, np.inf) == np.inf:
                    break
                self.beam(tau)
            joint |= not keeps
            tau *= _SEED_STEP
            if least_work(self.tables, tau) >= self.best:
                break
        self.prices[:] = 0.0
        if joint:
            self.polish()

    def polish(self) -> None:
        """Single layers and single edges changed while that helps."""
        while self.assignment is not None:
            plans = neighbours(self.assignment, len(self.problem.types))
            cost = evaluate(plans, self.tables)[0]
            row = int(np.argmin(cost))
            if not cost[row] < self.best * (1 - 1e-12):
                return
            self.best, self.assignment = float(cost[row]), plans[row].copy()

    def found_any(self) -> bool:
        """No path that was tried keeps the limits: is there one at all? If not, one step proves it."""
        tau = self.tables.slowest
        if self.path(tau)[0] == np.inf:
            self.steps.append(Step(tau * (1 + SLACK), 0.0, np.inf, RELAXED))
            return False
        if self.price(tau, np.inf) == np.inf:
            prices = tuple(float(one) for one in self.prices)
            self.steps.append(Step(tau * (1 + SLACK), 0.0, np.inf, PRICED, prices))
            return False
        self.prices[:] = 0.0
        outcome, _, assignment = labelled(self.tables, tau, self.prices, np.inf, *_LABELS[1], 0)
        if outcome == NONE:
            none = (0.0,) * len(self.prices)
            self.steps.append(Step(tau * (1 + SLACK), 0.0, np.inf, LABELLED, none))
        elif outcome == FOUND:
            self.consider(assignment)
            self.polish()
        return outcome == FOUND

    def beam(self, tau: float) -> None:
        """A good plan that keeps the limits, found among the most promising paths alone."""
        width = max(4, _BEAM // max(1, self.arcs // 4000))
        outcome, _, assignment = labelled(self.tables, tau, self.prices, np.inf, *_LABELS[1], width)
        if outcome == FOUND:
            self.consider(assignment)

    def price(self, tau: float, target: float) -> float:
        """The bound at tau by prices on the limits."""
        bound, self.prices, kept_rate, kept = priced(self.tables, tau, self.prices, target, self.tries)
        self.paths += self.tries
        if kept_rate < np.inf:
            self.consider(kept)
        return np.inf if bound > self.everything else float(bound)

    def joint(self, tau: float) -> tuple[float, str]:
        """The bound at tau when the shortest path breaks a limit."""
        fixed = self.tables.fixed
        bound = self.price(tau, self.goal / (tau * (1 - _REACH[0])) - fixed)
        if self.goal <= tau * (1 - _ENOUGH) * (fixed + bound):
            return bound, PRICED
        for reach, labels in [(reach, _LABELS[0]) for reach in _REACH] + [(_REACH[-1], _LABELS[1])]:
            if self.late:
                break
            cutoff = self.goal / (tau * (1 - reach)) - fixed
            outcome, rate, assignment = labelled(self.tables, tau, self.prices, cutoff, *labels, 0)
            if outcome == TOO_MANY:
                continue
            if outcome == FOUND:
                self.consider(assignment)
                return float(rate), LABELLED
            return cutoff, LABELLED
        return bound, PRICED

    def prove(self) -> None:
        """Steps down from the slowest stage time until nothing cheaper can be left."""
        tau = self.tables.slowest * (1 + SLACK)
        self.narrow = Narrowing(self.tables) if self.many else None
        floor = self.tables.fixed * fastest(self.problem)
        seen = np.inf
        while True:
            if tau < seen * (1 - _WORK_EVERY):
                seen, work = tau, floor + least_work(self.tables, tau)
                if work >= self.goal * (1 - SLACK):
                    self.steps.append(Step(tau, 0.0, work, WORK))
                    self.lower = min(self.lower, work)
                    return
            at, bound, kind, prices = self.bound(tau)
            if bound == np.inf:
                self.steps.append(Step(at, 0.0, np.inf, kind, prices))
                return
            reached = self.goal / (self.tables.fixed + bound)
            if reached > tau * (1 - SLACK):
                reached = tau * (1 - _FORCED)  # could not be proven: the bound gives way
            tau = reached * (1 - 2 * SLACK)
            self.steps.append(Step(at, tau, bound, kind, prices))
            self.lower = min(self.lower, tau * (self.tables.fixed + bound))
            if self.progress is not None:
                self.progress(self.paths, 0, self.best)

    def bound(self, tau: float) -> tuple[float, float, str, tuple[float, ...]]:
        """A bound that holds at tau, and the stage time (tau or slower) for which it was shown."""
        known = self.known.recall(tau)
        if known is not None and self.goal <= tau * (1 - _FREE) * (self.tables.fixed + known[1]):
            return known
        bound, keeps = self.path(tau)
        kind = RELAXED
        if not keeps:
            bound, kind = self.joint(tau)
        prices = tuple(float(one) for one in self.prices) if kind in (PRICED, LABELLED) else ()
        self.known.learn(tau, bound, kind, prices)
        return tau, bound, kind, prices


def exact(
    problem: Problem, budget: Budget, progress: Progress | None = None, known: Known | None = None
) -> Outcome:
    """The optimum and its certificate; the budget's evaluations do not bind it, its seconds do.

    `known` carries over what was found for the same problem at another throughput.
    """
    load_kernels()
    if len(problem.layers) ** 2 * len(problem.types) > _MANY:
        load_list_kernels()
    started = time.process_time()
    chain = _Chain(problem, budget.seconds, progress=progress, known=known or Known())
    chain.seed()
    if chain.best == np.inf and not chain.found_any():
        cpu_s = time.process_time() - started
        proof = Certificate(np.inf, np.inf, tuple(chain.steps))
        note = "infeasible" if chain.steps else "no plan was found in the time allowed"
        return Outcome("exact", None, chain.paths, cpu_s, np.inf if chain.steps else 0.0, (), proof, note)
    chain.prove()
    scale = problem.epochs * problem.samples / 3600
    lower = min(chain.lower, chain.best)
    if lower >= chain.best * (1 - 1e-8):
        lower = chain.best  # equal to nine digits, which is what stage times are compared to
    plan = cheapest(problem, chain.assignment)
    assert plan is not None, "the best assignment is feasible"
    return Outcome(
        "exact",
        plan,
        chain.paths,
        time.process_time() - started,
        lower_bound_usd=min(lower * scale, plan.cost_usd),  # the last bit of a product may be above
        curve=tuple(chain.curve),
        certificate=Certificate(chain.best, lower, tuple(chain.steps)),
    )


def fastest(problem: Problem) -> float:
    """A stage time that no plan can beat, whatever it costs."""
    tables = problem.tables
    compute = tables.layer[:, :, 0] + tables.layer[:, :, 1] / np.maximum(tables.limit, 1)[:, None]
    data = tables.layer[:, :, 2] + tables.layer[:, :, 3] / np.maximum(tables.limit, 1)[:, None]
    time_s = np.where(problem.allowed.T, np.maximum(compute, data), np.inf)
    return float(time_s.min(axis=0).max())


def neighbours(assignment: Types, kinds: int) -> Types:
    """Every plan that differs in one layer, or in one edge between two stages moved by any distance."""
    layers = len(assignment)
    plans = []
    for layer in range(layers):
        for kind in range(kinds):
            if kind != assignment[layer]:
                plan = assignment.copy()
                plan[layer] = kind
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
