"""The interface of all search methods: a problem and a budget in, an outcome out.

The methods in `BLACK_BOX` also take `objective`, an objective other than the closed formula (a simulation, a
measurement), and `start`, an assignment to start from.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from berth.errors import UnknownNameError
from berth.extras import require
from berth.plan.evaluate import Assignments, CostFunction, Evaluator
from berth.plan.plan import Plan, cheapest
from berth.plan.problem import Problem
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.warmup import load_kernels

Progress = Callable[[int, int, float], None]  # evaluations so far, in total, dollars of the best plan


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a method may search; the first limit that is reached ends it."""

    evaluations: int = 6400
    seconds: float = 60.0  # of CPU time
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The plan that a method found, the effort, and what is known about the optimum."""

    method: str
    plan: Plan | None
    evaluations: int
    cpu_s: float
    lower_bound_usd: float = 0.0  # 0: nothing known
    curve: tuple[tuple[int, float], ...] = ()  # (evaluations, best dollars so far)
    certificate: Any = None
    note: str = ""


@dataclass
class Search:
    """A running search: the evaluator with its counts, the clock, the budget."""

    problem: Problem
    budget: Budget
    progress: Progress | None = None
    objective: CostFunction | None = None  # None: the closed formula
    start: Assignments | None = None  # an assignment to start from
    evaluate: Evaluator = field(init=False)
    started: float = field(default_factory=time.process_time)

    def __post_init__(self) -> None:
        load_kernels()
        self.started = time.process_time()
        self.evaluate = Evaluator(self.problem, objective=self.objective)

    @property
    def cpu_s(self) -> float:
        """CPU seconds since the search started."""
        return time.process_time() - self.started

    @property
    def remaining(self) -> int:
        """Evaluations that the budget still allows; 0 when the time is over."""
        if self.cpu_s >= self.budget.seconds:
            return 0
        return max(0, self.budget.evaluations - self.evaluate.evaluations)

    def evaluate_start(self) -> None:
        """Evaluate the start assignment, if there is one."""
        if self.start is not None and self.remaining:
            self.evaluate(self.start)

    def report_progress(self) -> None:
        """Call the progress function, if there is one."""
        if self.progress is not None:
            self.progress(self.evaluate.evaluations, self.budget.evaluations, self.evaluate.best_usd)

    def outcome(self, method: str, **more: Any) -> Outcome:
        """Return the best plan seen."""
        best = self.evaluate.best
        plan = None if best is None else cheapest(self.problem, best)
        evaluator = self.evaluate
        return Outcome(method, plan, evaluator.evaluations, self.cpu_s, curve=tuple(evaluator.curve), **more)

    def no_placement(self, method: str) -> Outcome:
        """Return the outcome for a problem with a layer that may run on no type."""
        layer = self.problem.layers[int(np.argmin(self.problem.allowed.any(axis=1)))]
        return self.outcome(method, note=f"layer {layer!r} may run on no type")


Method = Callable[..., Outcome]  # problem, budget, progress; those in BLACK_BOX: objective=, start=


@dataclass(frozen=True, slots=True)
class AssignmentSearch:
    """A method that searches the assignments that a problem allows."""

    name: str
    run: Callable[[Search, AssignmentSpace], str]  # returns a note
    needs: str = ""  # an optional package

    def __call__(
        self,
        problem: Problem,
        budget: Budget,
        progress: Progress | None = None,
        *,
        objective: CostFunction | None = None,
        start: Assignments | None = None,
    ) -> Outcome:
        """Return the best plan that the search sees."""
        if self.needs:
            require(self.needs, self.name)
        search = Search(problem, budget, progress, objective, start)
        space = AssignmentSpace(problem, np.random.default_rng(budget.seed))
        if space.is_empty:
            return search.no_placement(self.name)
        return search.outcome(self.name, note=self.run(search, space))


# name -> (module under berth.plan.search, one line about it)
METHODS = {
    "exact": ("exact", "shortest paths over all step times: the optimum, with a certificate"),
    "berth-lstm": ("learned", "an LSTM pretrained on exact's answers, with a greedy start and mutations"),
    "berth-rnn": ("learned", "the same with a plain recurrent network"),
    "reinforce-lstm": (
        "reinforce",
        "the published learned scheduler: an LSTM with fresh weights, REINFORCE alone",
    ),
    "reinforce-rnn": ("reinforce", "the same with a plain recurrent network"),
    "brute": ("brute", "every assignment, within the budget"),
    "bayes": ("bayes", "Bayesian optimisation (optuna's TPE)"),
    "genetic": ("genetic", "a genetic algorithm (DEAP)"),
    "greedy": ("greedy", "layer by layer the cheapest type, then single changes"),
    "random": ("random", "assignments drawn at random"),
    "cpu-only": ("fixed", "all layers on CPU cores"),
    "gpu-only": ("fixed", "all layers on the cheapest GPU type that can hold the throughput"),
    "heuristic": ("fixed", "the first, data-heavy layer on CPU cores, the others on the GPU"),
    "static-cpu-gpu": ("static", "sparse layers on CPU cores, the others on GPUs, six cores for each GPU"),
    "static-servers": ("static", "workers of one type, a fixed number of server cores for each"),
}

ALIASES = {"rl-lstm": "berth-lstm", "rl-rnn": "berth-rnn"}  # earlier names

RANDOMISED = frozenset(  # other seeds give other plans
    {"berth-lstm", "berth-rnn", "reinforce-lstm", "reinforce-rnn", "bayes", "genetic", "random"}
)
BLACK_BOX = RANDOMISED | {"greedy"} | ALIASES.keys()


def canonical_name(name: str) -> str:
    """Return the name of a method, given that or an earlier one; raise an error if there is none."""
    found = ALIASES.get(name, name)
    if found not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return found


def get_method(name: str) -> Method:
    """Return a search method by name: a function of problem, budget and progress."""
    found = canonical_name(name)
    module = import_module(f"berth.plan.search.{METHODS[found][0]}")
    method: Method = module.METHODS[found]
    return method if found == name else _renamed(method, name, found)


def _renamed(method: Method, name: str, found: str) -> Method:
    """Return the method with a note that it was called by an earlier name."""

    def run(*given: Any, **more: Any) -> Outcome:
        outcome = method(*given, **more)
        note = f"{name} is now called {found}"
        return replace(outcome, note=f"{outcome.note}; {note}" if outcome.note else note)

    return run
