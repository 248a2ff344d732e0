"""Loads the planning kernels, or compiles them on first use, so that searches do not count that time."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def load_kernels() -> None:
    """Load the kernels by running each on a tiny problem."""
    from berth.plan.evaluate import Evaluator
    from berth.plan.limits import labelled, list_arcs, priced
    from berth.plan.many_layers import layer_work, min_rate_many, min_work_many
    from berth.plan.near_arcs import keep_near, min_rate_near
    from berth.plan.objective.pipeline import TASKS, step_ends
    from berth.plan.plan import cheapest, slots_of
    from berth.plan.problem import DevicePool, make_problem
    from berth.plan.provision import swept
    from berth.plan.shortest_path import min_rate, min_step, min_work

    types = (DevicePool("a", 1.0, 3), DevicePool("b", 2.0, 3))
    times = np.array([[1.0, 0.4], [1.0, 0.5]])
    problem = make_problem(
        batch=1, throughput=1, types=types, layers=("x", "y"), oct_s=times, odt_s=times, alpha=1, beta=1
    )
    arrays, slots = problem.arrays, slots_of(problem.schedules(0)[0])
    Evaluator(problem)(np.array([0, 1]))
    cheapest(problem, np.array([0, 1]))
    _, stages, _ = min_rate(arrays, slots, 1.0, np.inf)
    swept(arrays, slots, stages, 1.0)
    min_work(arrays, slots, 1.0)
    min_step(arrays, slots)
    added = layer_work(arrays, slots)
    min_rate_many(arrays, slots, added, 1.0, np.inf)
    min_work_many(arrays, slots, added, 1.0)
    min_rate_near(arrays, slots, *keep_near(arrays, list_arcs(arrays, slots, 1.0, np.inf), np.inf), 1.0)
    arcs = list_arcs(arrays, slots, 1.0, np.inf)
    priced(arrays, arcs, 0, np.zeros(2), 1.0, 2)
    labelled(arrays, arcs, 0, np.zeros(2), np.inf, 10, 1000, 0)
    step_ends(np.ones((TASKS, 2)), np.ones((1, 2)), micro=1, flight=1, ahead=1, steps=1)
