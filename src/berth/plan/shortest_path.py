"""For one stage time tau: the assignment with the lowest price per hour, as a shortest path.

A stage of layers a..b on type t needs a known number of replicas at tau, independent of the other stages. So the
cheapest plan is a shortest path from before the first layer to after the last, with an arc per stage and no two arcs
of one type in a row. `reduced` prices may include prices on limits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined, kernel
from berth.plan.arrays import (
    COMPUTE_SERIAL,
    COMPUTE_SHARED,
    DATA_SERIAL,
    DATA_SHARED,
    FORBIDDEN,
    REPLICATED,
    SHARDED,
    ProblemArrays,
)
from berth.plan.provision import SLACK, min_replicas, replicas_for

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REPLICAS, WORK = 0, 1  # cost of an arc: replicas at tau, or work that no faster tau avoids


@inlined
def arc_replicas(
    running: Floats,
    device: int,
    first: int,
    last: int,
    tau: float,
    crossing: float,
    memory: float,
    holds: bool,
) -> float:
    """Return the replicas that layers first..last need on a type; `holds`: memory never binds."""
    if running[device, last + 1, FORBIDDEN] > running[device, first, FORBIDDEN]:
        return np.inf
    compute = replicas_for(
        running[device, last + 1, COMPUTE_SERIAL] - running[device, first, COMPUTE_SERIAL],
        running[device, last + 1, COMPUTE_SHARED] - running[device, first, COMPUTE_SHARED],
        tau,
    )
    data = replicas_for(
        running[device, last + 1, DATA_SERIAL] - running[device, first, DATA_SERIAL],
        running[device, last + 1, DATA_SHARED] - running[device, first, DATA_SHARED] + crossing,
        tau,
    )
    replicas = max(compute, data)
    if holds:
        return replicas
    return max(
        replicas,
        min_replicas(
            running[device, last + 1, REPLICATED] - running[device, first, REPLICATED],
            running[device, last + 1, SHARDED] - running[device, first, SHARDED],
            memory,
        ),
    )


@inlined
def arc_work(running: Floats, device: int, first: int, last: int, tau: float, crossing: float) -> float:
    """Return a lower bound on replicas x tau of layers first..last, at tau and any faster stage time."""
    if running[device, last + 1, FORBIDDEN] > running[device, first, FORBIDDEN]:
        return np.inf
    loose = tau * (1 + SLACK)
    rest_compute = loose - (
        running[device, last + 1, COMPUTE_SERIAL] - running[device, first, COMPUTE_SERIAL]
    )
    rest_data = loose - (running[device, last + 1, DATA_SERIAL] - running[device, first, DATA_SERIAL])
    if rest_compute <= 0 or rest_data <= 0:
        return np.inf
    computing = (
        running[device, last + 1, COMPUTE_SHARED] - running[device, first, COMPUTE_SHARED]
    ) / rest_compute
    moving = (
        running[device, last + 1, DATA_SHARED] - running[device, first, DATA_SHARED] + crossing
    ) / rest_data
    return tau * max(computing, moving)


class Paths(NamedTuple):
    """Shortest paths to each (last layer of a stage, its type), and the two best types at each layer."""

    cost: Floats  # [layer, type]
    begin: Ints  # [layer, type]: first layer of that stage
    before: Ints  # [layer, type]: type of the previous stage; -1: none
    best: Floats  # [layer, 2]: lowest cost of any type, and lowest of any other
    best_type: Ints  # [layer, 2]


@kernel
def empty_paths(problem: ProblemArrays) -> Paths:
    """Allocate the paths of a problem."""
    num_types, layers = problem.price.shape[0], problem.running.shape[1] - 1
    return Paths(
        np.empty((layers, num_types)),
        np.empty((layers, num_types), np.int64),
        np.empty((layers, num_types), np.int64),
        np.empty((layers, 2)),
        np.empty((layers, 2), np.int64),
    )


@inlined
def shortest_to(
    problem: ProblemArrays, paths: Paths, last: int, device: int, price: float, tau: float, weight: int
) -> None:
    """Compute the shortest path whose last stage is of this type and ends at `last`."""
    running, memory, limit = problem.running, problem.memory[device], problem.limit[device]
    holds = running[device, last + 1, REPLICATED] + running[device, last + 1, SHARDED] <= memory
    right = problem.cross[last] if last + 1 < len(problem.cross) else 0.0
    cross, best, best_type = problem.cross, paths.best, paths.best_type
    least, begin, before = np.inf, -1, -1
    for first in range(last, -1, -1):
        # Without the crossing at its left boundary a stage only costs more as it gets longer.
        if weight == REPLICAS:
            replicas = arc_replicas(running, device, first, last, tau, right, memory, holds)
            if replicas > limit:
                break
        else:
            replicas = arc_work(running, device, first, last, tau, right)
        if price * replicas >= least:
            break
        if first == 0:
            least, begin, before = price * replicas, 0, -1
            break
        other = 1 if best_type[first - 1, 0] == device else 0
        head = best[first - 1, other]
        if head + price * replicas >= least:
            continue
        if weight == REPLICAS:
            replicas = arc_replicas(
                running, device, first, last, tau, right + cross[first - 1], memory, holds
            )
            if replicas > limit:
                continue
        else:
            replicas = arc_work(running, device, first, last, tau, right + cross[first - 1])
        if head + price * replicas < least:
            least, begin, before = head + price * replicas, first, best_type[first - 1, other]
    paths.cost[last, device], paths.begin[last, device], paths.before[last, device] = (
        least,
        begin,
        before,
    )


@kernel
def forward(problem: ProblemArrays, reduced: Floats, tau: float, weight: int, paths: Paths) -> float:
    """Compute shortest paths to every layer and type at `reduced` prices; return the lowest cost of all layers."""
    num_types, layers = problem.price.shape[0], problem.running.shape[1] - 1
    for last in range(layers):
        best, best_type = paths.best[last], paths.best_type[last]
        best[:] = np.inf
        best_type[:] = -1
        for device in range(num_types):
            shortest_to(problem, paths, last, device, reduced[device], tau, weight)
            cost = paths.cost[last, device]
            if cost < best[0]:
                best[1], best_type[1] = best[0], best_type[0]
                best[0], best_type[0] = cost, device
            elif cost < best[1]:
                best[1], best_type[1] = cost, device
    return paths.best[layers - 1, 0]


@kernel
def backward(problem: ProblemArrays, reduced: Floats, tau: float, ahead: Floats) -> None:
    """Write `ahead[b, t]`: the lowest cost of the layers after b, if b's stage is of type t and ends there."""
    running, cross, limits, memories = problem.running, problem.cross, problem.limit, problem.memory
    num_types, layers = len(problem.price), len(cross)
    least = np.empty(num_types)  # from `first` on, if a stage of this type begins there
    ahead[layers - 1, :] = 0.0
    for first in range(layers - 1, -1, -1):
        left = cross[first - 1] if first > 0 else 0.0
        for device in range(num_types):
            price, limit, memory = reduced[device], limits[device], memories[device]
            holds = running[device, layers, REPLICATED] + running[device, layers, SHARDED] <= memory
            shortest = np.inf
            for last in range(first, layers):
                # Without the crossing at its right boundary a stage only costs more as it gets longer.
                replicas = arc_replicas(running, device, first, last, tau, left, memory, holds)
                if replicas > limit or price * replicas >= shortest:
                    break
                if price * replicas + ahead[last, device] >= shortest:
                    continue
                if last + 1 < layers:
                    replicas = arc_replicas(
                        running, device, first, last, tau, left + cross[last], memory, holds
                    )
                if replicas <= limit:
                    shortest = min(shortest, price * replicas + ahead[last, device])
            least[device] = shortest
        if first > 0:
            for device in range(num_types):
                ahead[first - 1, device] = np.inf
                for other in range(num_types):
                    if other != device:
                        ahead[first - 1, device] = min(ahead[first - 1, device], least[other])


@kernel
def trace_back(paths: Paths, last: int, device: int, assignment: Ints) -> None:
    """Write the assignment of the path whose last stage is of type `device` and ends at `last`."""
    while last >= 0:
        first = paths.begin[last, device]
        assignment[first : last + 1] = device
        device, last = paths.before[last, device], first - 1


@kernel
def use(problem: ProblemArrays, assignment: Ints, tau: float, used: Floats) -> None:
    """Write the devices of each type that an assignment needs at tau."""
    used[:] = 0.0
    layers = len(assignment)
    first = 0
    while first < layers:
        device = assignment[first]
        last = first
        while last + 1 < layers and assignment[last + 1] == device:
            last += 1
        crossing = problem.cross[first - 1] if first > 0 else 0.0
        if last + 1 < layers:
            crossing += problem.cross[last]
        used[device] += arc_replicas(
            problem.running, device, first, last, tau, crossing, problem.memory[device], False
        )
        first = last + 1


@entry
def min_rate(problem: ProblemArrays, tau: float) -> tuple[float, Ints, Floats]:
    """Return the lowest price per hour at tau (limits per stage only), its assignment, and its devices by type."""
    paths = empty_paths(problem)
    layers = len(problem.cross)
    assignment = np.full(layers, -1)
    used = np.zeros(len(problem.price))
    rate = forward(problem, problem.price, tau, REPLICAS, paths)
    if rate < np.inf:
        trace_back(paths, layers - 1, paths.best_type[layers - 1, 0], assignment)
        use(problem, assignment, tau, used)
    return rate, assignment, used


@entry
def min_work(problem: ProblemArrays, tau: float) -> float:
    """Return a lower bound on price x replicas x time per example of plans with a stage time of at most tau."""
    return forward(problem, problem.price, tau, WORK, empty_paths(problem))
