"""Shortest paths over many layers: a stage is not made longer where the work that this adds rules it out.

The plain shortest path (`berth.plan.shortest_path`) looks at every stage that costs less than the best path to its end:
with 1,000 layers at most of the four million stages of eight types. Here the loop over earlier first layers ends as
soon as no stage that begins there, or earlier, can be part of a cheaper path. With k replicas a call has at most
batch / (micro k) examples, and a longer stage needs no fewer replicas. So each layer adds at least

    batch / micro x min over u of (seconds of its call with u examples) / u,    u at most batch / (micro k)

device seconds per step. Their prefix sums are computed once per schedule, for k = 1, 2, 4 ..: a difference of two of
them rules out a stage without sizing it, and the lowest (path to a boundary - price x prefix sum) over all earlier
boundaries rules out all longer stages at once.
"""

from __future__ import annotations

from math import frexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, inlined, kernel
from berth.plan.arrays import ProblemArrays
from berth.plan.problem import COMPUTE, FORBIDDEN, IN, OUT
from berth.plan.shortest_path import RENT, WORK, Paths, arc_cost, empty_paths, relax, trace_back, use
from berth.plan.stage import Slots, crossing, curve, curve_at, fact, largest_call, skips

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MANY = 32  # layers from which this is faster
LEVELS = 12  # k up to 2 ** 11 replicas
_PARTS = 3  # compute, in, out: each alone is a lower bound
_SAFE = 1 - 1e-7  # more than the rounding errors of sums, and than the tolerance of step times


class Bounds(NamedTuple):
    """Of one path: its stages are compared with what all longer ones cost at least."""

    added: Floats  # [choice, level, boundary, part]: device seconds of the layers before, at least
    lowest: Floats  # [choice, level, boundary, part]: path - price x added, the lowest of all boundaries up to here
    scale: float  # from device seconds to what a path is measured in


@entry
def layer_work(problem: ProblemArrays, slots: Slots) -> Floats:
    """Return the device seconds per step that the layers before each boundary add at least to a stage."""
    choices, layers = len(problem.type_of), problem.cross.shape[1]
    added = np.zeros((choices, LEVELS, layers + 1, _PARTS))
    for choice in range(choices):
        for level in range(LEVELS):
            most = problem.batch / slots.micro / 2.0**level
            for layer in range(layers):
                for part in range(_PARTS):
                    least = least_per_example(problem, slots, choice, layer, part, most)
                    before = added[choice, level, layer, part]
                    added[choice, level, layer + 1, part] = before + least * problem.batch / slots.micro
    return added


@inlined
def least_per_example(
    problem: ProblemArrays, slots: Slots, choice: int, layer: int, part: int, most: float
) -> float:
    """Return the least seconds per example of a layer's calls with up to `most` examples."""
    which = (COMPUTE, IN, OUT)[part]
    least, point = np.inf, 1
    while True:
        at_end = point >= len(problem.grid) or problem.grid[point] >= most
        examples = most if at_end else problem.grid[point]
        if at_end:
            c = curve_at(problem, choice, layer, layer, COMPUTE, examples)
            i = curve_at(problem, choice, layer, layer, IN, examples)
            o = curve_at(problem, choice, layer, layer, OUT, examples)
            own = curve_at(problem, choice, layer, layer, which, examples)
        else:
            c = curve(problem, choice, layer, layer, COMPUTE, point)
            i = curve(problem, choice, layer, layer, IN, point)
            o = curve(problem, choice, layer, layer, OUT, point)
            own = curve(problem, choice, layer, layer, which, point)
        least = min(least, (slots.w_max * own + slots.w_sum * (c + i + o)) / examples)
        if at_end:
            return max(0.0, least)
        point += 1


@kernel
def replica_level(
    problem: ProblemArrays,
    slots: Slots,
    choice: int,
    first: int,
    last: int,
    step_s: float,
    replicas: float,
    weight: int,
) -> int:
    """Return the logarithm to base 2 of the replicas that a stage needs at least, rounded down."""
    if weight == WORK:
        moved = crossing(problem, choice, first, last, False)
        calls = largest_call(problem, slots, choice, first, last, moved, 0.0, step_s * (2 - _SAFE))
        replicas = max(1.0, problem.batch / (slots.micro * calls)) if calls > 0.0 else 1.0
    return min(LEVELS, frexp(replicas)[1]) - 1


@inlined
def all_longer_cost_more(bounds: Bounds, price: float, place: tuple[int, int, int, int], most: float) -> bool:
    """Return whether no stage up to a last layer that begins at `first` or earlier is on a path below `most`."""
    choice, level, first, last = place
    for part in range(_PARTS):
        rest = price * bounds.scale * bounds.added[choice, level, last + 1, part]
        if (bounds.lowest[choice, level, first, part] + rest) * _SAFE >= most:
            return True
    return False


@inlined
def least_devices(bounds: Bounds, place: tuple[int, int, int, int], weight: int) -> float:
    """Return the devices (of work: device seconds) that a stage needs at least, from its layers' work alone."""
    choice, level, first, last = place
    least = 0.0
    for part in range(_PARTS):
        own = bounds.added[choice, level, last + 1, part] - bounds.added[choice, level, first, part]
        least = max(least, own * bounds.scale * _SAFE)
    return least if weight == WORK else np.ceil(least)


@kernel
def add_boundary(problem: ProblemArrays, bounds: Bounds, boundary: int, cost: float) -> None:
    """Extend the lowest differences by a boundary, to which the shortest path is known."""
    for choice in range(bounds.added.shape[0]):
        price = problem.price[problem.type_of[choice]] * bounds.scale
        for level in range(LEVELS):
            for part in range(_PARTS):
                own = cost - price * bounds.added[choice, level, boundary, part]
                if boundary > 0:
                    own = min(own, bounds.lowest[choice, level, boundary - 1, part])
                bounds.lowest[choice, level, boundary, part] = own


@kernel
def relax_likely(
    problem: ProblemArrays, slots: Slots, paths: Paths, last: int, step_s: float, weight: int, cutoff: float
) -> None:
    """Improve the path to the end of a layer by its own stages, and by the last stage of the path before it."""
    price, core = problem.price, problem.host_price
    for choice in range(len(problem.type_of)):
        for begin in range(2):
            if begin == 0:
                first = last
            elif last == 0 or paths.cost[1, last] == np.inf or paths.choice[1, last] != choice:
                continue
            else:
                first = paths.first[1, last]
            if skips(problem, choice, first, last) or paths.cost[1, first] == np.inf:
                continue
            cost, _ = arc_cost(problem, slots, price, core, choice, first, last, True, step_s, 1.0, weight)
            if paths.cost[1, first] + cost < cutoff:
                relax(paths, first, last, choice, cost)


@kernel
def relax_choice(
    problem: ProblemArrays,
    slots: Slots,
    bounds: Bounds,
    choice: int,
    last: int,
    step_s: float,
    weight: int,
    cutoff: float,
    paths: Paths,
) -> None:
    """Improve the path to the end of a layer by stages of one choice, from short ones to long ones."""
    price, core = problem.price, problem.host_price
    own_price, start, level = price[problem.type_of[choice]], 1.0, 0
    for first in range(last, -1, -1):
        if fact(problem, choice, first, last, FORBIDDEN) > 0.5:
            break
        if skips(problem, choice, first, last):
            continue
        most = min(cutoff, paths.cost[1, last + 1])
        place = (choice, level, first, last)
        if all_longer_cost_more(bounds, own_price, place, most):
            break
        if (paths.cost[1, first] + own_price * least_devices(bounds, place, weight)) * _SAFE >= most:
            continue
        cost, start = arc_cost(problem, slots, price, core, choice, first, last, False, step_s, start, weight)
        if cost >= most:
            break
        level = replica_level(problem, slots, choice, first, last, step_s, start, weight)
        if paths.cost[1, first] + cost < most:
            cost, _ = arc_cost(problem, slots, price, core, choice, first, last, True, step_s, start, weight)
            if paths.cost[1, first] + cost < cutoff:
                relax(paths, first, last, choice, cost)


@kernel
def forward_many(
    problem: ProblemArrays,
    slots: Slots,
    added: Floats,
    step_s: float,
    weight: int,
    cutoff: float,
    paths: Paths,
) -> float:
    """Compute what `forward` does for any types and number of stages."""
    layers = problem.cross.shape[1]
    bounds = Bounds(added, np.empty_like(added), 1.0 if weight == WORK else 1.0 / step_s)
    paths.cost[:] = np.inf
    paths.cost[:, 0] = 0.0
    add_boundary(problem, bounds, 0, 0.0)
    for last in range(layers):
        relax_likely(problem, slots, paths, last, step_s, weight, cutoff)
        for choice in range(len(problem.type_of)):
            relax_choice(problem, slots, bounds, choice, last, step_s, weight, cutoff, paths)
        add_boundary(problem, bounds, last + 1, paths.cost[1, last + 1])
    return paths.cost[1, layers]


@entry
def min_rate_many(
    problem: ProblemArrays, slots: Slots, added: Floats, step_s: float, cutoff: float
) -> tuple[float, Ints, Floats]:
    """Return what `min_rate` does; `added` is the schedule's `layer_work`."""
    paths = empty_paths(problem, slots)
    used = np.zeros(len(problem.price))
    rate = forward_many(problem, slots, added, step_s, RENT, cutoff, paths)
    if rate == np.inf:
        return rate, np.empty((0, 3), np.int64), used
    stages = trace_back(problem, paths)
    use(problem, slots, stages, step_s, used)
    return rate, stages, used


@entry
def min_work_many(problem: ProblemArrays, slots: Slots, added: Floats, step_s: float) -> float:
    """Return what `min_work` does; `added` is the schedule's `layer_work`."""
    paths = empty_paths(problem, slots)
    return forward_many(problem, slots, added, step_s, WORK, np.inf, paths)
