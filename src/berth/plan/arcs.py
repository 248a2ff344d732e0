"""Shortest paths over the few stages that still matter: what makes the proof fast for a thousand layers.

A path through a stage costs at least: the shortest path to it, the stage, the shortest path behind it. All
three only grow as tau falls. So stages that are too dear at one tau stay so for all faster ones, as long as
plans above a cutoff do not matter; the others are listed, and the next paths look at them alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry, inlined, kernel
from berth.plan.shortest import UNITS, Paths, arc_units, backward, forward, no_paths, trace_back, use
from berth.plan.tables import REPLICATED, SHARDED, Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_USED_UP = 1e-6  # a list that is good for no more than this part of tau


class Arcs(NamedTuple):
    """Stages by their last layer: those of layer b are `first[begin[b]:begin[b + 1]]`."""

    begin: Ints
    first: NDArray[np.int32]
    kind: NDArray[np.int32]


@inlined
def weight(
    running: Floats,
    cross: Floats,
    price: float,
    limit: float,
    memory: float,
    kind: int,
    first: int,
    last: int,
    tau: float,
) -> float:
    """Dollars per hour of a stage at tau; infinite if it can't be held."""
    crossing = cross[first - 1] if first > 0 else 0.0
    if last + 1 < len(cross):
        crossing += cross[last]
    holds = running[kind, last + 1, REPLICATED] + running[kind, last + 1, SHARDED] <= memory
    units = arc_units(running, kind, first, last, tau, crossing, memory, holds)
    return price * units if units <= limit else np.inf


@entry
def first_list(problem: Tables, tau: float, cutoff: float) -> tuple[float, Arcs]:
    """The least rate at tau, and all stages through which a path costs less than `cutoff`."""
    running, cross, price = problem.running, problem.cross, problem.price
    kinds, layers = len(price), len(cross)
    paths = no_paths(problem)
    ahead = np.empty((layers, kinds))
    rate = forward(problem, price, tau, UNITS, paths)
    if rate >= cutoff:
        return rate, Arcs(np.zeros(layers + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    backward(problem, price, tau, ahead)
    best, best_kind = paths.best, paths.best_kind
    room = 16 * layers
    first_of, kind_of = np.empty(room, np.int32), np.empty(room, np.int32)
    begin = np.zeros(layers + 1, np.int64)
    count = 0
    for last in range(layers):
        right = cross[last] if last + 1 < layers else 0.0
        for kind in range(kinds):
            limit, memory = problem.limit[kind], problem.memory[kind]
            holds = running[kind, last + 1, REPLICATED] + running[kind, last + 1, SHARDED] <= memory
            most = cutoff - ahead[last, kind]
            for first in range(last, -1, -1):
                units = arc_units(running, kind, first, last, tau, right, memory, holds)
                if units > limit or price[kind] * units >= most:
                    break
                head = 0.0
                if first > 0:
                    head = best[first - 1, 1 if best_kind[first - 1, 0] == kind else 0]
                if head + price[kind] * units >= most:
                    continue
                if first > 0:
                    units = arc_units(
                        running, kind, first, last, tau, right + cross[first - 1], memory, holds
                    )
                if units <= limit and head + price[kind] * units < most:
                    if count == room:
                        room *= 2
                        first_of, kind_of = _grown(first_of, room), _grown(kind_of, room)
                    first_of[count], kind_of[count] = first, kind
                    count += 1
        begin[last + 1] = count
    return rate, Arcs(begin, first_of[:count].copy(), kind_of[:count].copy())


@kernel
def _grown(array: NDArray[np.int32], room: int) -> NDArray[np.int32]:
    wider = np.empty(room, np.int32)
    wider[: len(array)] = array
    return wider


@kernel
def forward_over(problem: Tables, arcs: Arcs, tau: float, paths: Paths) -> float:
    """Shortest paths to every layer and type over the listed stages."""
    # Arrays are fetched from their tuples once: each fetch in a loop would count a reference.
    running, cross, price = problem.running, problem.cross, problem.price
    limit, memory = problem.limit, problem.memory
    begin, first_of, kind_of = arcs.begin, arcs.first, arcs.kind
    best, best_kind, cost, start, before = paths.best, paths.best_kind, paths.cost, paths.begin, paths.before
    cost[:] = np.inf
    best[:] = np.inf
    best_kind[:] = -1
    for last in range(len(cross)):
        for place in range(begin[last], begin[last + 1]):
            first, kind = first_of[place], kind_of[place]
            head, fore = 0.0, -1
            if first > 0:
                other = 1 if best_kind[first - 1, 0] == kind else 0
                head, fore = best[first - 1, other], best_kind[first - 1, other]
            if head >= cost[last, kind]:
                continue
            total = head + weight(
                running, cross, price[kind], limit[kind], memory[kind], kind, first, last, tau
            )
            if total < cost[last, kind]:
                cost[last, kind], start[last, kind], before[last, kind] = total, first, fore
        for kind in range(len(price)):
            total = cost[last, kind]
            if total < best[last, 0]:
                best[last, 1], best_kind[last, 1] = best[last, 0], best_kind[last, 0]
                best[last, 0], best_kind[last, 0] = total, kind
            elif total < best[last, 1]:
                best[last, 1], best_kind[last, 1] = total, kind
    return best[len(cross) - 1, 0]


@entry
def least_rate_over(problem: Tables, arcs: Arcs, tau: float) -> tuple[float, Ints, Floats]:
    """As `least_rate`, over the listed stages."""
    paths = no_paths(problem)
    layers = len(problem.cross)
    assignment = np.full(layers, -1)
    used = np.zeros(len(problem.price))
    rate = forward_over(problem, arcs, tau, paths)
    if rate < np.inf:
        trace_back(paths, layers - 1, paths.best_kind[layers - 1, 0], assignment)
        use(problem, assignment, tau, used)
    return rate, assignment, used


@entry
def worthwhile(problem: Tables, arcs: Arcs, tau: float, cutoff: float) -> tuple[float, Arcs]:
    """The least rate over the listed stages, and those through which a path costs less than `cutoff`."""
    kinds, layers = len(problem.price), len(problem.cross)
    paths = no_paths(problem)
    rate = forward_over(problem, arcs, tau, paths)
    if rate >= cutoff:
        return rate, Arcs(np.zeros(layers + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    running, cross, price = problem.running, problem.cross, problem.price
    limit, memory = problem.limit, problem.memory
    starts, first_of, kind_of = arcs.begin, arcs.first, arcs.kind
    best, best_kind = paths.best, paths.best_kind
    ahead = np.full((layers, kinds), np.inf)  # behind b, when b's stage is of this type and ends there
    ahead[layers - 1] = 0.0
    least = np.full((layers, kinds), np.inf)  # from a on, when a stage of this type begins at a
    keep = np.zeros(len(first_of), np.bool_)
    for last in range(layers - 1, -1, -1):
        if last + 1 < layers:
            for kind in range(kinds):
                for other in range(kinds):
                    if other != kind:
                        ahead[last, kind] = min(ahead[last, kind], least[last + 1, other])
        for place in range(starts[last], starts[last + 1]):
            first, kind = first_of[place], kind_of[place]
            head = 0.0
            if first > 0:
                head = best[first - 1, 1 if best_kind[first - 1, 0] == kind else 0]
            if head + ahead[last, kind] >= cutoff:
                continue
            rest = ahead[last, kind] + weight(
                running, cross, price[kind], limit[kind], memory[kind], kind, first, last, tau
            )
            least[first, kind] = min(least[first, kind], rest)
            keep[place] = head + rest < cutoff
    begin = np.zeros(layers + 1, np.int64)
    for last in range(layers):
        begin[last + 1] = begin[last] + np.sum(keep[starts[last] : starts[last + 1]])
    return rate, Arcs(begin, first_of[keep], kind_of[keep])


class Narrowing:
    """Lists of stages for a falling tau, each drawn from a wider one and good for a shorter way."""

    WAYS = (0.05, 0.015, 0.004)  # how far down, as a part of tau, each list is good

    def __init__(self, problem: Tables) -> None:
        self.problem = problem
        self.lists: list[tuple[float, float, Arcs]] = []  # good down to this tau, for rates below this one

    def least_rate(self, tau: float, best: float) -> tuple[float, Ints | None, Floats]:
        """A lower bound on the rate at tau, and the path that attains it, if one costs less than `best` can."""
        nothing = np.zeros(len(self.problem.price))
        while self.lists and self.lists[-1][0] >= tau * (1 - _USED_UP):
            self.lists.pop()
        while len(self.lists) < len(self.WAYS):
            end = tau * (1 - self.WAYS[len(self.lists)])
            if self.lists:
                wider_end, wider_cutoff, wider = self.lists[-1]
                end = max(end, wider_end)  # faster than that, stages matter that the wider list leaves out
                cutoff = best / end - self.problem.fixed
                rate, arcs = worthwhile(self.problem, wider, tau, cutoff)
                rate = min(rate, wider_cutoff)  # stages that are not listed cost at least this
            else:
                cutoff = best / end - self.problem.fixed
                rate, arcs = first_list(self.problem, tau, cutoff)
            if rate >= cutoff:
                return rate, None, nothing
            self.lists.append((end, cutoff, arcs))
        _, cutoff, arcs = self.lists[-1]
        rate, assignment, used = least_rate_over(self.problem, arcs, tau)
        if rate >= cutoff:
            return cutoff, None, nothing
        return rate, assignment, used
