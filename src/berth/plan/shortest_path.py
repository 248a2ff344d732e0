"""For one step time: the stages with the lowest price per hour, as a shortest path.

A stage of layers first..last needs a known number of replicas and servers at a step time, independent of the other
stages. So the cheapest plan is a shortest path from before the first layer to after the last, with an arc per stage
and choice. Prices may include prices on limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined, kernel
from berth.plan.arrays import ProblemArrays
from berth.plan.problem import COMPUTE, FORBIDDEN, IN, OUT
from berth.plan.stage import Slots, curve_at, fact, host_cores, rented, replicas_needed, skips, work

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ANY = np.empty(0, np.int64)  # layers may be on any type
RENT, WORK = 0, 1  # cost of an arc: what is rented at the step time, or work that no faster step avoids


class Paths(NamedTuple):
    """Shortest paths to each boundary between layers, with at most s stages."""

    cost: Floats  # [s, boundary]
    first: Ints  # [s, boundary]: first layer of the last stage
    choice: Ints  # [s, boundary]


@kernel
def empty_paths(problem: ProblemArrays, slots: Slots) -> Paths:
    """Allocate the paths of a problem; row 0 and boundary 0 are the empty path."""
    layers = problem.cross.shape[1]
    rows = max(1, slots.stages) + 1
    return Paths(
        np.empty((rows, layers + 1)),
        np.empty((rows, layers + 1), np.int64),
        np.empty((rows, layers + 1), np.int64),
    )


@inlined
def arc_use(
    problem: ProblemArrays,
    slots: Slots,
    choice: int,
    first: int,
    last: int,
    left: bool,
    step_s: float,
    start: float,
) -> tuple[float, float, float]:
    """Return replicas, devices and host cores of a stage; infinite replicas if a limit is too low for it alone."""
    replicas = replicas_needed(problem, slots, choice, first, last, left, step_s, start)
    if replicas == np.inf:
        return np.inf, np.inf, np.inf
    device = problem.type_of[choice]
    devices = rented(replicas, problem.unit[device])
    cores = host_cores(problem, slots, choice, first, last, left, step_s, replicas)
    taken = devices + cores if problem.host == device else devices
    if taken > problem.limit[device]:
        return np.inf, np.inf, np.inf
    if problem.host >= 0 and cores > problem.limit[problem.host]:
        return np.inf, np.inf, np.inf
    return replicas, devices, cores


@kernel
def arc_cost(
    problem: ProblemArrays,
    slots: Slots,
    price: Floats,
    host_price: float,
    choice: int,
    first: int,
    last: int,
    left: bool,
    step_s: float,
    start: float,
    weight: int,
) -> tuple[float, float]:
    """Return the cost of a stage, and the replicas to start from for longer ones."""
    device = problem.type_of[choice]
    if weight == WORK:
        devices, cores = work(problem, slots, choice, first, last, left, step_s)
        return price[device] * devices + host_price * cores, start
    replicas, devices, cores = arc_use(problem, slots, choice, first, last, left, step_s, start)
    return price[device] * devices + host_price * cores, replicas


@inlined
def improves(paths: Paths, first: int, last: int, cost: float, cutoff: float) -> bool:
    """Return whether an arc of this cost would improve a path that stays below `cutoff`."""
    rows = paths.cost.shape[0]
    for row in range(1, rows):
        total = paths.cost[row if rows == 2 else row - 1, first] + cost
        if total < min(cutoff, paths.cost[row, last + 1]):
            return True
    return False


@inlined
def relax(paths: Paths, first: int, last: int, choice: int, cost: float) -> None:
    """Improve the paths to the boundary after `last` by one arc."""
    rows = paths.cost.shape[0]
    for row in range(1, rows):
        total = paths.cost[row if rows == 2 else row - 1, first] + cost
        if total < paths.cost[row, last + 1]:
            paths.cost[row, last + 1] = total
            paths.first[row, last + 1] = first
            paths.choice[row, last + 1] = choice


@inlined
def earliest(assigned: Ints, last: int, device: int) -> int:
    """Return the first layer from which a stage on this type may run to `last`; later than that if none."""
    if len(assigned) == 0:
        return 0
    first = last + 1
    while first > 0 and assigned[first - 1] == device:
        first -= 1
    return first


@kernel
def forward(
    problem: ProblemArrays,
    slots: Slots,
    price: Floats,
    host_price: float,
    step_s: float,
    weight: int,
    cutoff: float,
    assigned: Ints,
    paths: Paths,
) -> float:
    """Compute shortest paths to every boundary at these prices; return the lowest cost of all layers.

    Paths that cost `cutoff` or more are not followed. `assigned` has the type of each layer; empty: any.
    """
    choices, layers = len(problem.type_of), problem.cross.shape[1]
    paths.cost[:] = np.inf
    paths.cost[:, 0] = 0.0
    rows = paths.cost.shape[0]
    for last in range(layers):
        if slots.stages == 1 and last + 1 < layers:
            continue
        for choice in range(choices):
            least = earliest(assigned, last, problem.type_of[choice])
            if least > last:
                continue
            if slots.stages > 0 and least == 0 and not skips(problem, choice, 0, last):  # a single stage
                cost, _ = arc_cost(
                    problem, slots, price, host_price, choice, 0, last, True, step_s, 1.0, weight
                )
                relax(paths, 0, last, choice, cost)
            if slots.stages == 1 or (slots.stages == 2 and last + 1 < layers):
                continue
            start = 1.0
            for first in range(last, max(least - 1, -1 if slots.stages == 0 else 0), -1):
                if skips(problem, choice, first, last):
                    continue
                # Without the crossing before it a stage only costs more as it gets longer.
                cost, start = arc_cost(
                    problem, slots, price, host_price, choice, first, last, False, step_s, start, weight
                )
                if cost >= min(cutoff, paths.cost[1, last + 1]):
                    break
                if not improves(paths, first, last, cost, cutoff):
                    continue
                cost, _ = arc_cost(
                    problem, slots, price, host_price, choice, first, last, True, step_s, start, weight
                )
                if cost < cutoff:
                    relax(paths, first, last, choice, cost)
    return paths.cost[rows - 1, layers]


@kernel
def trace_back(problem: ProblemArrays, paths: Paths) -> Ints:
    """Return the stages of the cheapest path: [stage, (first layer, last layer, choice)]."""
    rows, layers = paths.cost.shape[0], problem.cross.shape[1]
    found = np.empty((layers, 3), np.int64)
    count, row, end = 0, rows - 1, layers
    while end > 0:
        first = paths.first[row, end]
        found[layers - 1 - count, 0] = first
        found[layers - 1 - count, 1] = end - 1
        found[layers - 1 - count, 2] = paths.choice[row, end]
        count += 1
        end = first
        if rows > 2:
            row -= 1
    return found[layers - count :]


@kernel
def use(problem: ProblemArrays, slots: Slots, stages: Ints, step_s: float, used: Floats) -> float:
    """Write the devices of each type that stages need at a step time; return their price per hour."""
    used[:] = 0.0
    rate = 0.0
    for row in range(len(stages)):
        choice = stages[row, 2]
        device = problem.type_of[choice]
        _, devices, cores = arc_use(problem, slots, choice, stages[row, 0], stages[row, 1], True, step_s, 1.0)
        used[device] += devices
        if problem.host >= 0:
            used[problem.host] += cores
        rate += problem.price[device] * devices + problem.host_price * cores
    return rate


@entry
def min_rate(
    problem: ProblemArrays, slots: Slots, step_s: float, cutoff: float
) -> tuple[float, Ints, Floats]:
    """Return the lowest price per hour at a step time (limits per stage only), its stages and its devices by type.

    If no path costs less than `cutoff`, the price is infinite.
    """
    paths = empty_paths(problem, slots)
    used = np.zeros(len(problem.price))
    rate = forward(problem, slots, problem.price, problem.host_price, step_s, RENT, cutoff, ANY, paths)
    if rate == np.inf:
        return rate, np.empty((0, 3), np.int64), used
    stages = trace_back(problem, paths)
    use(problem, slots, stages, step_s, used)
    return rate, stages, used


@entry
def min_work(problem: ProblemArrays, slots: Slots, step_s: float) -> float:
    """Return a lower bound on price x step time of plans whose step takes at most `step_s`."""
    paths = empty_paths(problem, slots)
    return forward(problem, slots, problem.price, problem.host_price, step_s, WORK, np.inf, ANY, paths)


@entry
def min_step(problem: ProblemArrays, slots: Slots) -> float:
    """Return a step time that no plan can beat: that of the slowest layer alone, on all devices of its best type."""
    slowest = 0.0
    for layer in range(problem.cross.shape[1]):
        least = np.inf
        for choice in range(len(problem.type_of)):
            if skips(problem, choice, layer, layer) or fact(problem, choice, layer, layer, FORBIDDEN) > 0.5:
                continue
            most = max(1.0, min(problem.most, problem.limit[problem.type_of[choice]]))
            examples = problem.batch / (most * slots.micro)
            c = curve_at(problem, choice, layer, layer, COMPUTE, examples)
            i = curve_at(problem, choice, layer, layer, IN, examples)
            o = curve_at(problem, choice, layer, layer, OUT, examples)
            least = min(least, slots.w_max * max(c, i, o) + slots.w_sum * (c + i + o))
        slowest = max(slowest, least)
    return slowest
