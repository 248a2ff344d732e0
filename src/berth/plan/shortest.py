"""For one stage time tau: the assignment with the least price per hour, as a shortest path.

A stage of layers a..b on type t needs a known number of units at tau, whatever the other stages are. So the
cheapest plan is the shortest path from before the first layer to behind the last, with an arc per stage and
no two arcs of one type in a row. `reduced` prices may differ from the real ones: prices on limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry, inlined, kernel
from berth.plan.provision import SLACK, least_units, units_for
from berth.plan.tables import (
    COMPUTE_SERIAL,
    COMPUTE_SHARED,
    DATA_SERIAL,
    DATA_SHARED,
    FORBIDDEN,
    REPLICATED,
    SHARDED,
    Tables,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNITS, WORK = 0, 1  # what an arc costs: whole units at tau, or work that no faster tau can avoid


@inlined
def arc_units(
    running: Floats, kind: int, first: int, last: int, tau: float, crossing: float, memory: float, holds: bool
) -> float:
    """Units that layers first..last need on a type; `holds`: memory never binds."""
    if running[kind, last + 1, FORBIDDEN] > running[kind, first, FORBIDDEN]:
        return np.inf
    compute = units_for(
        running[kind, last + 1, COMPUTE_SERIAL] - running[kind, first, COMPUTE_SERIAL],
        running[kind, last + 1, COMPUTE_SHARED] - running[kind, first, COMPUTE_SHARED],
        tau,
    )
    data = units_for(
        running[kind, last + 1, DATA_SERIAL] - running[kind, first, DATA_SERIAL],
        running[kind, last + 1, DATA_SHARED] - running[kind, first, DATA_SHARED] + crossing,
        tau,
    )
    units = max(compute, data)
    if holds:
        return units
    return max(
        units,
        least_units(
            running[kind, last + 1, REPLICATED] - running[kind, first, REPLICATED],
            running[kind, last + 1, SHARDED] - running[kind, first, SHARDED],
            memory,
        ),
    )


@inlined
def arc_work(running: Floats, kind: int, first: int, last: int, tau: float, crossing: float) -> float:
    """Units x tau that layers first..last cost at least, at tau and at any faster stage time."""
    if running[kind, last + 1, FORBIDDEN] > running[kind, first, FORBIDDEN]:
        return np.inf
    loose = tau * (1 + SLACK)
    rest_compute = loose - (running[kind, last + 1, COMPUTE_SERIAL] - running[kind, first, COMPUTE_SERIAL])
    rest_data = loose - (running[kind, last + 1, DATA_SERIAL] - running[kind, first, DATA_SERIAL])
    if rest_compute <= 0 or rest_data <= 0:
        return np.inf
    computing = (
        running[kind, last + 1, COMPUTE_SHARED] - running[kind, first, COMPUTE_SHARED]
    ) / rest_compute
    moving = (running[kind, last + 1, DATA_SHARED] - running[kind, first, DATA_SHARED] + crossing) / rest_data
    return tau * max(computing, moving)


class Paths(NamedTuple):
    """Shortest paths to each (last layer of a stage, its type), and the two best types at each layer."""

    cost: Floats  # [layer, type]
    begin: Ints  # [layer, type]: first layer of that stage
    before: Ints  # [layer, type]: type of the stage in front; -1: none
    best: Floats  # [layer, 2]: least cost of any type, and least of any other
    best_kind: Ints  # [layer, 2]


@kernel
def no_paths(problem: Tables) -> Paths:
    """Room for the paths of a problem."""
    kinds, layers = problem.price.shape[0], problem.running.shape[1] - 1
    return Paths(
        np.empty((layers, kinds)),
        np.empty((layers, kinds), np.int64),
        np.empty((layers, kinds), np.int64),
        np.empty((layers, 2)),
        np.empty((layers, 2), np.int64),
    )


@inlined
def shortest_to(
    problem: Tables, paths: Paths, last: int, kind: int, price: float, tau: float, weight: int
) -> None:
    """The shortest path whose last stage is of this type and ends at `last`."""
    running, memory, limit = problem.running, problem.memory[kind], problem.limit[kind]
    holds = running[kind, last + 1, REPLICATED] + running[kind, last + 1, SHARDED] <= memory
    right = problem.cross[last] if last + 1 < len(problem.cross) else 0.0
    cross, best, best_kind = problem.cross, paths.best, paths.best_kind
    least, begin, before = np.inf, -1, -1
    for first in range(last, -1, -1):
        # Without the crossing at its left edge a stage only costs more as it gets longer.
        if weight == UNITS:
            units = arc_units(running, kind, first, last, tau, right, memory, holds)
            if units > limit:
                break
        else:
            units = arc_work(running, kind, first, last, tau, right)
        if price * units >= least:
            break
        if first == 0:
            least, begin, before = price * units, 0, -1
            break
        other = 1 if best_kind[first - 1, 0] == kind else 0
        head = best[first - 1, other]
        if head + price * units >= least:
            continue
        if weight == UNITS:
            units = arc_units(running, kind, first, last, tau, right + cross[first - 1], memory, holds)
            if units > limit:
                continue
        else:
            units = arc_work(running, kind, first, last, tau, right + cross[first - 1])
        if head + price * units < least:
            least, begin, before = head + price * units, first, best_kind[first - 1, other]
    paths.cost[last, kind], paths.begin[last, kind], paths.before[last, kind] = least, begin, before


@kernel
def forward(problem: Tables, reduced: Floats, tau: float, weight: int, paths: Paths) -> float:
    """Shortest paths to every layer and type, at `reduced` prices; returns the least cost of all layers."""
    kinds, layers = problem.price.shape[0], problem.running.shape[1] - 1
    for last in range(layers):
        best, best_kind = paths.best[last], paths.best_kind[last]
        best[:] = np.inf
        best_kind[:] = -1
        for kind in range(kinds):
            shortest_to(problem, paths, last, kind, reduced[kind], tau, weight)
            cost = paths.cost[last, kind]
            if cost < best[0]:
                best[1], best_kind[1] = best[0], best_kind[0]
                best[0], best_kind[0] = cost, kind
            elif cost < best[1]:
                best[1], best_kind[1] = cost, kind
    return paths.best[layers - 1, 0]


@kernel
def backward(problem: Tables, reduced: Floats, tau: float, ahead: Floats) -> None:
    """Least cost of the layers behind b, when b's stage is of type t and ends there: `ahead[b, t]`."""
    running, cross, limits, memories = problem.running, problem.cross, problem.limit, problem.memory
    kinds, layers = len(problem.price), len(cross)
    least = np.empty(kinds)  # from `first` on, when a stage of this type begins there
    ahead[layers - 1, :] = 0.0
    for first in range(layers - 1, -1, -1):
        left = cross[first - 1] if first > 0 else 0.0
        for kind in range(kinds):
            price, limit, memory = reduced[kind], limits[kind], memories[kind]
            holds = running[kind, layers, REPLICATED] + running[kind, layers, SHARDED] <= memory
            shortest = np.inf
            for last in range(first, layers):
                # Without the crossing at its right edge a stage only costs more as it gets longer.
                units = arc_units(running, kind, first, last, tau, left, memory, holds)
                if units > limit or price * units >= shortest:
                    break
                if price * units + ahead[last, kind] >= shortest:
                    continue
                if last + 1 < layers:
                    units = arc_units(running, kind, first, last, tau, left + cross[last], memory, holds)
                if units <= limit:
                    shortest = min(shortest, price * units + ahead[last, kind])
            least[kind] = shortest
        if first > 0:
            for kind in range(kinds):
                ahead[first - 1, kind] = np.inf
                for other in range(kinds):
                    if other != kind:
                        ahead[first - 1, kind] = min(ahead[first - 1, kind], least[other])


@kernel
def trace_back(paths: Paths, last: int, kind: int, assignment: Ints) -> None:
    """Writes the assignment of the path whose last stage is of type `kind` and ends at `last`."""
    while last >= 0:
        first = paths.begin[last, kind]
        assignment[first : last + 1] = kind
        kind, last = paths.before[last, kind], first - 1


@kernel
def use(problem: Tables, assignment: Ints, tau: float, used: Floats) -> None:
    """Units of each type that an assignment needs at tau."""
    used[:] = 0.0
    layers = len(assignment)
    first = 0
    while first < layers:
        kind = assignment[first]
        last = first
        while last + 1 < layers and assignment[last + 1] == kind:
            last += 1
        crossing = problem.cross[first - 1] if first > 0 else 0.0
        if last + 1 < layers:
            crossing += problem.cross[last]
        used[kind] += arc_units(
            problem.running, kind, first, last, tau, crossing, problem.memory[kind], False
        )
        first = last + 1


@entry
def least_rate(problem: Tables, tau: float) -> tuple[float, Ints, Floats]:
    """The least price per hour at tau (limits per stage only), an assignment that has it, and its units."""
    paths = no_paths(problem)
    layers = len(problem.cross)
    assignment = np.full(layers, -1)
    used = np.zeros(len(problem.price))
    rate = forward(problem, problem.price, tau, UNITS, paths)
    if rate < np.inf:
        trace_back(paths, layers - 1, paths.best_kind[layers - 1, 0], assignment)
        use(problem, assignment, tau, used)
    return rate, assignment, used


@entry
def least_work(problem: Tables, tau: float) -> float:
    """Price x units x time that every plan with a stage time of at most tau pays per example."""
    return forward(problem, problem.price, tau, WORK, no_paths(problem))
