"""What all methods of search share: a problem and a budget in, an outcome out.

The methods in `BLACK_BOX` also take `objective`, a truth other than the closed formula (a simulation, a
measurement), and `start`, an assignment to begin with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from berth.errors import UnknownNameError
from berth.plan.evaluate import Evaluator, Objective, Types
from berth.plan.plan import Plan, cheapest
from berth.plan.problem import Problem
from berth.plan.warm import load_kernels

Progress = Callable[[int, int, float], None]  # evaluations so far, of how many, best dollars


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a method may search; whichever ends first."""

    evaluations: int = 6400
    seconds: float = 60.0  # of CPU time
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method found, what it cost to find it, and what is known about the optimum."""

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
    """A search under way: the evaluator with its counts, the clock, the budget."""

    problem: Problem
    budget: Budget
    progress: Progress | None = None
    objective: Objective | None = None  # None: the closed formula
    start: Types | None = None  # an assignment to begin with
    evaluate: Evaluator = field(init=False)
    started: float = field(default_factory=time.process_time)

    def __post_init__(self) -> None:
        load_kernels()
        self.started = time.process_time()
        self.evaluate = Evaluator(self.problem, objective=self.objective)

    @property
    def cpu_s(self) -> float:
        """CPU seconds since the search began."""
        return time.process_time() - self.started

    @property
    def left(self) -> int:
        """Evaluations that may still be made; 0 when the time is over."""
        if self.cpu_s >= self.budget.seconds:
            return 0
        return max(0, self.budget.evaluations - self.evaluate.evaluations)

    def begin(self) -> None:
        """Evaluates the assignment to begin with, if there is one."""
        if self.start is not None and self.left:
            self.evaluate(self.start)

    def report(self) -> None:
        """Tells whoever watches."""
        if self.progress is not None:
            self.progress(self.evaluate.evaluations, self.budget.evaluations, self.evaluate.best_usd)

    def outcome(self, method: str, **more: Any) -> Outcome:
        """The best plan seen."""
        best = self.evaluate.best
        plan = None if best is None else cheapest(self.problem, best)
        evaluator = self.evaluate
        return Outcome(method, plan, evaluator.evaluations, self.cpu_s, curve=tuple(evaluator.curve), **more)

    def nowhere(self, method: str) -> Outcome:
        """Nothing to search: some layer may run nowhere."""
        layer = self.problem.layers[int(np.argmin(self.problem.allowed.any(axis=1)))]
        return self.outcome(method, note=f"layer {layer!r} may run on no type")


Method = Callable[..., Outcome]  # problem, budget, progress; those in BLACK_BOX: objective=, start=

# name -> (module under berth.plan.search, one line about it)
METHODS = {
    "exact": ("exact", "shortest paths over all stage times: the optimum, with a certificate"),
    "rl-lstm": ("learned", "an LSTM walks the layers, trained by REINFORCE"),
    "rl-rnn": ("learned", "the same with a plain recurrent network"),
    "brute": ("brute", "every assignment, as far as the budget goes"),
    "bayes": ("bayes", "Bayesian optimisation (optuna's TPE)"),
    "genetic": ("genetic", "a genetic algorithm (DEAP)"),
    "greedy": ("greedy", "layer by layer the cheapest type, then single changes"),
    "cpu-only": ("fixed", "all layers on CPU cores"),
    "gpu-only": ("fixed", "all layers on the cheapest kind of GPU that can hold the throughput"),
    "heuristic": ("fixed", "the first, data-heavy layer on CPU cores, the others on the GPU"),
    "random": ("random", "assignments drawn at random"),
}

BLACK_BOX = frozenset({"rl-lstm", "rl-rnn", "bayes", "genetic", "greedy", "random"})


def method(name: str) -> Method:
    """A method by name: a function of problem, budget and progress."""
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    module = import_module(f"berth.plan.search.{METHODS[name][0]}")
    found: Method = module.METHODS[name]
    return found


def all_methods() -> Iterator[tuple[str, str]]:
    """Names, and one line about each."""
    return ((name, line) for name, (_, line) in METHODS.items())
