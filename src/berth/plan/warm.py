"""Loads (or compiles, the first time) the kernels of planning, so that searches measure themselves alone."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def load_kernels() -> None:
    """Evaluates and solves two toys: one whose limits do not bind, and one whose limits do."""
    from berth.plan.evaluate import Evaluator, cut_stages, provisioned
    from berth.plan.limits import labelled, priced
    from berth.plan.problem import UnitType, make_problem
    from berth.plan.shortest import least_rate, least_work

    types = (UnitType("a", 1.0, 3), UnitType("b", 2.0, 3))
    times = np.array([[1.0, 0.4], [1.0, 0.5]])
    problem = make_problem(
        batch=1, throughput=1, types=types, layers=("x", "y"), oct_s=times, odt_s=times, alpha=1, beta=1
    )
    tables, both = problem.tables, np.array([0, 1])
    Evaluator(problem)(both)
    provisioned(both, tables)
    cut_stages(both, tables)
    least_rate(tables, 1.0)
    least_work(tables, 1.0)
    priced(tables, 1.0, np.zeros(2), 1.0, 2)
    labelled(tables, 1.0, np.zeros(2), np.inf, 10, 1000, 0)


@cache
def load_list_kernels() -> None:
    """The kernels for very many layers, which few problems need."""
    from berth.plan.arcs import first_list, least_rate_over, worthwhile
    from berth.plan.problem import UnitType, make_problem

    types = (UnitType("a", 1.0), UnitType("b", 2.0))
    problem = make_problem(
        batch=1, throughput=1, types=types, layers=("x", "y"), oct_s=1, odt_s=1, alpha=1, beta=1
    )
    _, arcs = first_list(problem.tables, 1.0, 1e9)
    _, arcs = worthwhile(problem.tables, arcs, 1.0, 1e9)
    least_rate_over(problem.tables, arcs, 1.0)
