"""A genetic algorithm (DEAP): tournaments, two-point crossover, mutation of whole runs of layers.

Infeasible plans are worse than feasible ones and are compared by how far they fall short, so that a
population in which nothing is feasible yet still climbs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from berth.extras import require
from berth.plan.evaluate import Objective, Types
from berth.plan.problem import Problem
from berth.plan.search.method import Budget, Outcome, Progress, Search
from berth.plan.search.moves import Moves, badness

POPULATION = 64
TOURNAMENT = 3
ELITE = 2
CROSSOVER, MUTATION = 0.7, 0.5


class _Plan(list[int]):
    """DEAP wants a sequence with a fitness."""

    fitness: Any


def genetic(
    problem: Problem,
    budget: Budget,
    progress: Progress | None = None,
    *,
    objective: Objective | None = None,
    start: Types | None = None,
) -> Outcome:
    """A population of 64 from random runs of layers; the two best always survive."""
    require("deap", "genetic")
    from deap import base, tools

    search = Search(problem, budget, progress, objective, start)
    moves = Moves(problem, np.random.default_rng(budget.seed))
    if moves.stuck:
        return search.nowhere("genetic")
    fitness = type("Badness", (base.Fitness,), {"weights": (-1.0,)})

    def judged(plans: Types) -> list[_Plan]:
        plans = plans[: search.left]
        made = [_Plan(plan.tolist()) for plan in plans]
        worth = badness(search.evaluate(plans)) if len(plans) else ()
        for one, value in zip(made, worth, strict=True):
            one.fitness = fitness((float(value),))
        search.report()
        return made

    def bred(parents: list[_Plan]) -> Types:
        children = [_Plan(parent) for parent in parents]
        for left, right in zip(children[::2], children[1::2], strict=False):
            if len(left) > 1 and random.random() < CROSSOVER:
                tools.cxTwoPoint(left, right)
        plans = np.array(children, np.int64)
        mutated = moves.draw.random(len(plans)) < MUTATION
        plans[mutated] = moves.changed_runs(plans[mutated])
        return plans

    with _own_randomness(budget.seed):
        first = moves.runs(POPULATION)
        if start is not None:
            first[0] = start
        population = judged(first)
        while search.left:
            parents = tools.selTournament(population, POPULATION - ELITE, TOURNAMENT)
            population = tools.selBest(population, ELITE) + judged(bred(parents))
    return search.outcome("genetic")


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """DEAP draws from Python's global generator: seeded here, and afterwards as if nothing had happened."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


METHODS = {"genetic": genetic}
