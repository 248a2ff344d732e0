"""Loads the planning kernels, or compiles them on first use, so that searches do not count that time."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def load_kernels() -> None:
    """Load the kernels by running each on a tiny problem."""
    from berth.plan.evaluate import Evaluator, provisioned, stage_rows
    from berth.plan.limits import labelled, priced
    from berth.plan.problem import DevicePool, make_problem
    from berth.plan.shortest_path import min_rate, min_work

    types = (DevicePool("a", 1.0, 3), DevicePool("b", 2.0, 3))
    times = np.array([[1.0, 0.4], [1.0, 0.5]])
    problem = make_problem(
        batch=1, throughput=1, types=types, layers=("x", "y"), oct_s=times, odt_s=times, alpha=1, beta=1
    )
    arrays, both = problem.arrays, np.array([0, 1])
    Evaluator(problem)(both)
    provisioned(both, arrays)
    stage_rows(both, arrays)
    min_rate(arrays, 1.0)
    min_work(arrays, 1.0)
    priced(arrays, 1.0, np.zeros(2), 1.0, 2)
    labelled(arrays, 1.0, np.zeros(2), np.inf, 10, 1000, 0)


@cache
def load_arc_kernels() -> None:
    """Load the kernels that only problems with very many layers need."""
    from berth.plan.arcs import list_arcs, min_rate_over, prune_arcs
    from berth.plan.problem import DevicePool, make_problem

    types = (DevicePool("a", 1.0), DevicePool("b", 2.0))
    problem = make_problem(
        batch=1, throughput=1, types=types, layers=("x", "y"), oct_s=1, odt_s=1, alpha=1, beta=1
    )
    _, arcs = list_arcs(problem.arrays, 1.0, 1e9)
    _, arcs = prune_arcs(problem.arrays, arcs, 1.0, 1e9)
    min_rate_over(problem.arrays, arcs, 1.0)
