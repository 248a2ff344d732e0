"""A genetic algorithm (DEAP): tournaments, two-point crossover, mutation of whole runs of layers.

Infeasible plans rank after feasible ones, by their shortfall, so that a population without a feasible plan still
improves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from berth.plan.evaluate import Assignments
from berth.plan.search.assignments import AssignmentSpace, cost_score
from berth.plan.search.method import AssignmentSearch, Search

POPULATION = 64
TOURNAMENT = 3
ELITE = 2
CROSSOVER, MUTATION = 0.7, 0.5


class _Plan(list[int]):
    """A sequence with a fitness, as DEAP expects."""

    fitness: Any


def genetic(search: Search, space: AssignmentSpace) -> str:
    """Evolve a population of 64 random plans; the two best always survive."""
    from deap import base, tools

    fitness = type("CostScore", (base.Fitness,), {"weights": (-1.0,)})

    def evaluated(plans: Assignments) -> list[_Plan]:
        plans = plans[: search.remaining]
        made = [_Plan(plan.tolist()) for plan in plans]
        score = cost_score(search.evaluate(plans)) if len(plans) else ()
        for one, value in zip(made, score, strict=True):
            one.fitness = fitness((float(value),))
        search.report_progress()
        return made

    def offspring(parents: list[_Plan]) -> Assignments:
        children = [_Plan(parent) for parent in parents]
        for left, right in zip(children[::2], children[1::2], strict=False):
            if len(left) > 1 and random.random() < CROSSOVER:
                tools.cxTwoPoint(left, right)
        plans = np.array(children, np.int64)
        mutated = space.rng.random(len(plans)) < MUTATION
        plans[mutated] = space.mutate_runs(plans[mutated])
        return plans

    with _seeded(search.budget.seed):
        first = space.random_runs(POPULATION)
        if search.start is not None:
            first[0] = search.start
        population = evaluated(first)
        while search.remaining:
            parents = tools.selTournament(population, POPULATION - ELITE, TOURNAMENT)
            population = tools.selBest(population, ELITE) + evaluated(offspring(parents))
    return ""


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed Python's global generator, which DEAP uses, and restore it afterwards."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


METHODS = {"genetic": AssignmentSearch("genetic", genetic, needs="deap")}
