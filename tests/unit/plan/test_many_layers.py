"""Shortest paths over many layers: the same paths and bounds as the plain shortest path, and long proofs end."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from berth.plan.many_layers import MANY, layer_work, min_rate_many, min_work_many
from berth.plan.plan import slots_of
from berth.plan.problem import pipelined
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.shortest_path import min_rate, min_work

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from random_problems import random_problem, random_world

STATED = [
    random_problem(40, 3, seed, throughput=100.0, serial=serial, limit=limit)
    for seed, (serial, limit) in enumerate([(0.02, 10**6), (0.3, 10**6), (0.0, 10**6), (0.02, 40)])
]
BUILT = [random_world(14, 2, seed, limit=12, micro=(1, 4)) for seed in range(4)]
CASES = [(problem, problem.schedules(0)[0]) for problem in STATED] + [
    (problem, pipelined(micro, 0, 3)) for problem in BUILT for micro in (1, 4)
]


@pytest.mark.parametrize(("problem", "schedule"), CASES)
def test_paths_and_bounds_are_those_of_the_plain_shortest_path(problem, schedule):
    arrays, slots = problem.arrays, slots_of(schedule)
    added = layer_work(arrays, slots)
    reached = 0
    for at in problem.arrays.slowest * np.array([30.0, 3.0, 1.0, 0.7, 0.4, 0.2]):
        rate, _, _ = min_rate(arrays, slots, at, np.inf)
        found, stages, _ = min_rate_many(arrays, slots, added, at, np.inf)
        assert found == rate
        assert min_work_many(arrays, slots, added, at) == min_work(arrays, slots, at)
        if rate < np.inf:
            reached += 1
            assert stages[0, 0] == 0  # of several paths that cost the same, either may be found
            assert stages[-1, 1] == len(problem.layers) - 1
            assert np.array_equal(stages[1:, 0], stages[:-1, 1] + 1)
            assert min_rate_many(arrays, slots, added, at, rate * 1.001)[0] == rate
            assert min_rate_many(arrays, slots, added, at, rate * 0.999)[0] == np.inf
    assert reached


def test_the_proof_for_many_layers_finds_the_optimum_of_the_plain_search(monkeypatch):
    problem = random_problem(MANY, 3, 5, throughput=100.0)
    outcome = exact(problem, Budget())
    monkeypatch.setattr("berth.plan.search.exact.MANY", MANY + 1)
    plain = exact(problem, Budget())
    assert outcome.plan.cost_usd == plain.plan.cost_usd
    assert outcome.lower_bound_usd == plain.lower_bound_usd == pytest.approx(plain.plan.cost_usd)
