"""Shortest paths over a pruned list of arcs, which makes the proof fast for a thousand layers.

An arc is a stage. A path through it costs at least the shortest path to it, the stage, and the shortest path after it.
All three only grow as tau falls. So an arc that exceeds a cutoff at one tau exceeds it at all faster ones; the others
are listed, and the next paths use the list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined, kernel
from berth.plan.arrays import REPLICATED, SHARDED, ProblemArrays
from berth.plan.shortest_path import (
    REPLICAS,
    Paths,
    arc_replicas,
    backward,
    empty_paths,
    forward,
    trace_back,
    use,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_USED_UP = 1e-6  # a list that is valid for less than this share of tau is discarded


class Arcs(NamedTuple):
    """Arcs by their last layer: those of layer b are `first[begin[b]:begin[b + 1]]`."""

    begin: Ints
    first: NDArray[np.int32]
    device: NDArray[np.int32]


@inlined
def weight(
    running: Floats,
    cross: Floats,
    price: float,
    limit: float,
    memory: float,
    device: int,
    first: int,
    last: int,
    tau: float,
) -> float:
    """Return the dollars per hour of a stage at tau; infinite if its limit is too low."""
    crossing = cross[first - 1] if first > 0 else 0.0
    if last + 1 < len(cross):
        crossing += cross[last]
    holds = running[device, last + 1, REPLICATED] + running[device, last + 1, SHARDED] <= memory
    replicas = arc_replicas(running, device, first, last, tau, crossing, memory, holds)
    return price * replicas if replicas <= limit else np.inf


@entry
def list_arcs(problem: ProblemArrays, tau: float, cutoff: float) -> tuple[float, Arcs]:
    """Return the lowest rate at tau, and all arcs on a path that costs less than `cutoff`."""
    running, cross, price = problem.running, problem.cross, problem.price
    num_types, layers = len(price), len(cross)
    paths = empty_paths(problem)
    ahead = np.empty((layers, num_types))
    rate = forward(problem, price, tau, REPLICAS, paths)
    if rate >= cutoff:
        return rate, Arcs(np.zeros(layers + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    backward(problem, price, tau, ahead)
    best, best_type = paths.best, paths.best_type
    room = 16 * layers
    first_of, type_of = np.empty(room, np.int32), np.empty(room, np.int32)
    begin = np.zeros(layers + 1, np.int64)
    count = 0
    for last in range(layers):
        right = cross[last] if last + 1 < layers else 0.0
        for device in range(num_types):
            limit, memory = problem.limit[device], problem.memory[device]
            holds = running[device, last + 1, REPLICATED] + running[device, last + 1, SHARDED] <= memory
            most = cutoff - ahead[last, device]
            for first in range(last, -1, -1):
                replicas = arc_replicas(running, device, first, last, tau, right, memory, holds)
                if replicas > limit or price[device] * replicas >= most:
                    break
                head = 0.0
                if first > 0:
                    head = best[first - 1, 1 if best_type[first - 1, 0] == device else 0]
                if head + price[device] * replicas >= most:
                    continue
                if first > 0:
                    replicas = arc_replicas(
                        running, device, first, last, tau, right + cross[first - 1], memory, holds
                    )
                if replicas <= limit and head + price[device] * replicas < most:
                    if count == room:
                        room *= 2
                        first_of, type_of = _grown(first_of, room), _grown(type_of, room)
                    first_of[count], type_of[count] = first, device
                    count += 1
        begin[last + 1] = count
    return rate, Arcs(begin, first_of[:count].copy(), type_of[:count].copy())


@kernel
def _grown(array: NDArray[np.int32], room: int) -> NDArray[np.int32]:
    wider = np.empty(room, np.int32)
    wider[: len(array)] = array
    return wider


@kernel
def forward_over_arcs(problem: ProblemArrays, arcs: Arcs, tau: float, paths: Paths) -> float:
    """Compute shortest paths to every layer and type over the listed arcs; return the lowest cost."""
    # Read the arrays from their tuples once: every read in a loop would count a reference.
    running, cross, price = problem.running, problem.cross, problem.price
    limit, memory = problem.limit, problem.memory
    begin, first_of, type_of = arcs.begin, arcs.first, arcs.device
    best, best_type, cost, start, before = paths.best, paths.best_type, paths.cost, paths.begin, paths.before
    cost[:] = np.inf
    best[:] = np.inf
    best_type[:] = -1
    for last in range(len(cross)):
        for place in range(begin[last], begin[last + 1]):
            first, device = first_of[place], type_of[place]
            head, fore = 0.0, -1
            if first > 0:
                other = 1 if best_type[first - 1, 0] == device else 0
                head, fore = best[first - 1, other], best_type[first - 1, other]
            if head >= cost[last, device]:
                continue
            total = head + weight(
                running,
                cross,
                price[device],
                limit[device],
                memory[device],
                device,
                first,
                last,
                tau,
            )
            if total < cost[last, device]:
                cost[last, device], start[last, device], before[last, device] = (
                    total,
                    first,
                    fore,
                )
        for device in range(len(price)):
            total = cost[last, device]
            if total < best[last, 0]:
                best[last, 1], best_type[last, 1] = best[last, 0], best_type[last, 0]
                best[last, 0], best_type[last, 0] = total, device
            elif total < best[last, 1]:
                best[last, 1], best_type[last, 1] = total, device
    return best[len(cross) - 1, 0]


@entry
def min_rate_over(problem: ProblemArrays, arcs: Arcs, tau: float) -> tuple[float, Ints, Floats]:
    """Return what `min_rate` does, over the listed arcs."""
    paths = empty_paths(problem)
    layers = len(problem.cross)
    assignment = np.full(layers, -1)
    used = np.zeros(len(problem.price))
    rate = forward_over_arcs(problem, arcs, tau, paths)
    if rate < np.inf:
        trace_back(paths, layers - 1, paths.best_type[layers - 1, 0], assignment)
        use(problem, assignment, tau, used)
    return rate, assignment, used


@entry
def prune_arcs(problem: ProblemArrays, arcs: Arcs, tau: float, cutoff: float) -> tuple[float, Arcs]:
    """Return the lowest rate over the listed arcs, and those on a path that costs less than `cutoff`."""
    num_types, layers = len(problem.price), len(problem.cross)
    paths = empty_paths(problem)
    rate = forward_over_arcs(problem, arcs, tau, paths)
    if rate >= cutoff:
        return rate, Arcs(np.zeros(layers + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    running, cross, price = problem.running, problem.cross, problem.price
    limit, memory = problem.limit, problem.memory
    starts, first_of, type_of = arcs.begin, arcs.first, arcs.device
    best, best_type = paths.best, paths.best_type
    ahead = np.full((layers, num_types), np.inf)  # after b, if b's stage is of this type and ends there
    ahead[layers - 1] = 0.0
    least = np.full((layers, num_types), np.inf)  # from a on, if a stage of this type begins at a
    keep = np.zeros(len(first_of), np.bool_)
    for last in range(layers - 1, -1, -1):
        if last + 1 < layers:
            for device in range(num_types):
                for other in range(num_types):
                    if other != device:
                        ahead[last, device] = min(ahead[last, device], least[last + 1, other])
        for place in range(starts[last], starts[last + 1]):
            first, device = first_of[place], type_of[place]
            head = 0.0
            if first > 0:
                head = best[first - 1, 1 if best_type[first - 1, 0] == device else 0]
            if head + ahead[last, device] >= cutoff:
                continue
            rest = ahead[last, device] + weight(
                running,
                cross,
                price[device],
                limit[device],
                memory[device],
                device,
                first,
                last,
                tau,
            )
            least[first, device] = min(least[first, device], rest)
            keep[place] = head + rest < cutoff
    begin = np.zeros(layers + 1, np.int64)
    for last in range(layers):
        begin[last + 1] = begin[last] + np.sum(keep[starts[last] : starts[last + 1]])
    return rate, Arcs(begin, first_of[keep], type_of[keep])


class ArcLists:
    """Lists of arcs for a falling tau, each pruned from a wider one and valid for a shorter range."""

    RANGES = (0.05, 0.015, 0.004)  # how far down each list is valid, as a share of tau

    def __init__(self, problem: ProblemArrays) -> None:
        self.problem = problem
        self.lists: list[tuple[float, float, Arcs]] = []  # valid down to this tau, for rates below this one

    def min_rate(self, tau: float, best: float) -> tuple[float, Ints | None, Floats]:
        """Return a lower bound on the rate at tau, and the path that attains it if it can cost less than `best`."""
        nothing = np.zeros(len(self.problem.price))
        while self.lists and self.lists[-1][0] >= tau * (1 - _USED_UP):
            self.lists.pop()
        while len(self.lists) < len(self.RANGES):
            end = tau * (1 - self.RANGES[len(self.lists)])
            if self.lists:
                wider_end, wider_cutoff, wider = self.lists[-1]
                end = max(end, wider_end)  # below that, arcs may matter that the wider list leaves out
                cutoff = best / end - self.problem.fixed
                rate, arcs = prune_arcs(self.problem, wider, tau, cutoff)
                rate = min(rate, wider_cutoff)  # arcs that are not listed cost at least this
            else:
                cutoff = best / end - self.problem.fixed
                rate, arcs = list_arcs(self.problem, tau, cutoff)
            if rate >= cutoff:
                return rate, None, nothing
            self.lists.append((end, cutoff, arcs))
        _, cutoff, arcs = self.lists[-1]
        rate, assignment, used = min_rate_over(self.problem, arcs, tau)
        if rate >= cutoff:
            return cutoff, None, nothing
        return rate, assignment, used
