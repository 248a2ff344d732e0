"""Shortest paths over the few stages that a cheaper plan can have, for a range of step times.

An arc is a stage. A path through it costs at least the shortest path to it, the stage, and the shortest path after it.
All three only grow as the step gets shorter. So an arc that exceeds a cutoff at one step time exceeds it at all
shorter ones; the others are listed once, and the next paths use the list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry
from berth.plan.arrays import ProblemArrays
from berth.plan.limits import Arcs, backward_over, forward_over
from berth.plan.shortest_path import arc_use, empty_paths, relax, trace_back, use
from berth.plan.stage import Slots

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RANGE = 0.1  # how far down a list is valid, as a share of the step time


class NearArcs(NamedTuple):
    """Arcs by their last layer, as in `Arcs`, and the range of step times and prices for which they are enough."""

    begin: Ints
    first: Ints
    choice: Ints
    longest: float
    shortest: float
    cutoff: float  # no path over other arcs costs less per hour


@entry
def keep_near(problem: ProblemArrays, arcs: Arcs, cutoff: float) -> tuple[Ints, Ints, Ints]:
    """Return the arcs, as (begin, first, choice), that are on a path which costs less than `cutoff`."""
    layers = problem.cross.shape[1]
    free = np.zeros(len(problem.price))
    cost, came = np.empty((2, layers + 1)), np.zeros((2, layers + 1), np.int64)
    ahead = np.empty(layers + 1)
    forward_over(problem, arcs, free, 0, cost, came)
    backward_over(problem, arcs, problem.price, problem.host_price, 0.0, ahead)
    begin = np.zeros(layers + 1, np.int64)
    keep = np.zeros(len(arcs.first), np.bool_)
    for last in range(layers):
        begin[last + 1] = begin[last]
        for place in range(arcs.begin[last], arcs.begin[last + 1]):
            own = problem.price[arcs.device[place]] * arcs.devices[place]
            own += problem.host_price * arcs.cores[place]
            if cost[1, arcs.first[place]] + own + ahead[last + 1] < cutoff:
                keep[place] = True
                begin[last + 1] += 1
    return begin, arcs.first[keep], arcs.choice[keep]


@entry
def min_rate_near(
    problem: ProblemArrays, slots: Slots, begin: Ints, first: Ints, choice: Ints, step_s: float
) -> tuple[float, Ints, Floats]:
    """Return what `min_rate` does, over the listed arcs."""
    paths = empty_paths(problem, slots)
    paths.cost[:] = np.inf
    paths.cost[:, 0] = 0.0
    layers, rows = problem.cross.shape[1], paths.cost.shape[0]
    used = np.zeros(len(problem.price))
    price, host_price, type_of = problem.price, problem.host_price, problem.type_of
    for last in range(layers):
        for place in range(begin[last], begin[last + 1]):
            if paths.cost[rows - 1, first[place]] == np.inf:
                continue
            if slots.stages == 1 and (first[place] > 0 or last + 1 < layers):
                continue
            _, devices, cores = arc_use(problem, slots, choice[place], first[place], last, True, step_s, 1.0)
            if devices < np.inf:
                rent = price[type_of[choice[place]]] * devices + host_price * cores
                relax(paths, first[place], last, choice[place], rent)
    rate = paths.cost[rows - 1, layers]
    if rate == np.inf:
        return rate, np.empty((0, 3), np.int64), used
    stages = trace_back(problem, paths)
    use(problem, slots, stages, step_s, used)
    return rate, stages, used
