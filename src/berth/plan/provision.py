"""Sizes given stages: replicas, servers and readers at one step time, and the step time that makes them cheapest.

Everything is rented for one step time: each stage gets the fewest replicas with which it takes at most that long. As
the step gets shorter, one stage after the other needs more. `sweep` visits these counts from the longest step allowed
downwards, until no shorter step can be cheaper: the work of the stages (berth.plan.stage) bounds what they cost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, kernel
from berth.plan.arrays import ProblemArrays
from berth.plan.shortest_path import RENT, WORK, empty_paths, forward, trace_back
from berth.plan.stage import (
    SLACK,
    Slots,
    readers_needed,
    rented,
    replicas_needed,
    server_load,
    servers_needed,
    stage_s,
    work,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REPLICAS, SERVERS, TIME = range(3)  # columns of a sized stage
_BOUND_EVERY = 4  # counts visited by `sweep` between two computations of its bound
_MOST_STEPS = 300
_CUTS = 3  # cuts tried for an assignment: at the longest step, then at the best step of the last cuts
_PRICE_STEP = 1.6  # factor on the price of a type that a path uses too much of
_TRIES = 6
_FEW_RUNS = 2  # assignments with more runs of one type have schedules that their work alone excludes
_WORTH = 4.0  # paths that rent this many times as much as the best plan are not followed
FORBIDDEN_SHORT = 2.0  # shortfall of an assignment that is not allowed


@kernel
def size(
    problem: ProblemArrays,
    slots: Slots,
    stages: Ints,
    step_s: float,
    sized: Floats,
    used: Floats,
    again: bool,
) -> tuple[float, float]:
    """Write replicas, servers and time of each stage at a step time; return (price per hour, time of a step).

    The price is infinite if a stage can't be that fast or the stages together exceed a limit. `again`: `sized` has the
    same stages at a longer step; those that are fast enough keep their counts, the others need more.
    """
    used[:] = 0.0
    readers = readers_needed(problem, step_s)
    rate = 0.0
    slowest = problem.readers_s / readers if readers > 0 else 0.0
    for row in range(len(stages)):
        first, choice = stages[row, 0], stages[row, 2]
        if not again or sized[row, TIME] > step_s:
            start = sized[row, REPLICAS] if again else 1.0
            if not _size_stage(problem, slots, stages[row], step_s, start, sized[row]):
                return np.inf, np.inf
        device = problem.type_of[choice]
        devices = rented(sized[row, REPLICAS], problem.unit[device])
        cores = rented(sized[row, SERVERS], problem.host_unit)
        if first == 0:
            cores += rented(readers, problem.host_unit)
        slowest = max(slowest, sized[row, TIME])
        used[device] += devices
        if problem.host >= 0:
            used[problem.host] += cores
        rate += problem.price[device] * devices + problem.host_price * cores
    for device in range(len(used)):
        if used[device] > problem.limit[device]:
            return np.inf, slowest
    return rate, slowest


@kernel
def _size_stage(
    problem: ProblemArrays, slots: Slots, stage: Ints, step_s: float, start: float, sized: Floats
) -> bool:
    """Write replicas, servers and time of a stage with `start` replicas at least; return whether it is possible."""
    first, last, choice = stage[0], stage[1], stage[2]
    replicas = replicas_needed(problem, slots, choice, first, last, True, step_s, start)
    if replicas == np.inf:
        return False
    servers = servers_needed(problem, slots, choice, first, last, step_s, replicas)
    taken, _, _, _, _ = stage_s(problem, slots, choice, first, last, replicas)
    if servers > 0:
        taken = max(taken, server_load(problem, slots, choice, first, last, replicas) / servers)
    sized[REPLICAS], sized[SERVERS], sized[TIME] = replicas, servers, taken
    return True


@kernel
def sweep(
    problem: ProblemArrays, slots: Slots, stages: Ints, longest: float, sized: Floats, used: Floats
) -> tuple[float, float, float]:
    """Find the step time up to `longest` at which stages are cheapest; return (cost of a step, its time, its target).

    The target is the step time for which they are sized; the slowest stage may be faster than that.
    """
    best, best_s, best_target = np.inf, 0.0, 0.0
    target = longest
    for step in range(_MOST_STEPS):
        rate, slowest = size(problem, slots, stages, target, sized, used, step > 0)
        if rate == np.inf:
            break
        rate += problem.fixed
        if slowest * rate < best:
            best, best_s, best_target = slowest * rate, slowest, target
        if step % _BOUND_EVERY == 0 and _least_work(problem, slots, stages, slowest) >= best:
            break
        target = min(slowest, best / rate) * (1 - 2 * SLACK)
    return best, best_s, best_target


@kernel
def _least_work(problem: ProblemArrays, slots: Slots, stages: Ints, step_s: float) -> float:
    """Return what stages pay at least for a step of `step_s` or any shorter one."""
    least = 0.0
    for row in range(len(stages)):
        devices, cores = work(problem, slots, stages[row, 2], stages[row, 0], stages[row, 1], True, step_s)
        least += problem.price[problem.type_of[stages[row, 2]]] * devices + problem.host_price * cores
    return least


@kernel
def best_cuts(
    problem: ProblemArrays, slots: Slots, assigned: Ints, cutoff: float, sized: Floats, used: Floats
) -> tuple[float, float, float, Ints]:
    """Return the cheapest stages found for layers with assigned types: cost, step time, time to size for, stages."""
    best, best_s, best_target = np.inf, 0.0, 0.0
    kept = np.empty((0, 3), np.int64)
    price, core = problem.price.copy(), problem.host_price
    step_s, cuts = problem.slowest, 0
    paths = empty_paths(problem, slots)
    for _ in range(_TRIES):
        if forward(problem, slots, price, core, step_s, RENT, cutoff, assigned, paths) == np.inf:
            break
        stages = trace_back(problem, paths)
        cost, taken, target = sweep(problem, slots, stages, step_s, sized, used)
        if cost == np.inf:  # a limit: make the types that are short more expensive for the path
            size(problem, slots, stages, step_s, sized, used, False)
            for device in range(len(used)):
                if used[device] > problem.limit[device]:
                    price[device] *= _PRICE_STEP
                    if device == problem.host:
                        core *= _PRICE_STEP
            continue
        if cost >= best * (1 - SLACK):
            break
        best, best_s, best_target = cost, taken, target
        kept = stages
        cuts += 1
        if cuts == _CUTS or target >= step_s:
            break
        step_s = target
    return best, best_s, best_target, kept


@kernel
def shortfall(problem: ProblemArrays, slots: Slots, assigned: Ints, used: Floats) -> float:
    """Return how far an assignment is from holding the throughput, as a sum of logarithms."""
    paths = empty_paths(problem, slots)
    step_s, short = problem.slowest, 0.0
    while (
        forward(problem, slots, problem.price, problem.host_price, step_s, RENT, np.inf, assigned, paths)
        == np.inf
    ):
        if short > 20.0:
            return short + FORBIDDEN_SHORT
        step_s, short = step_s * 1.5, short + np.log(1.5)
    stages = trace_back(problem, paths)
    sized = np.empty((len(stages), 3))
    size(problem, slots, stages, step_s, sized, used, False)
    for device in range(len(used)):
        if used[device] > problem.limit[device]:
            short += np.log((used[device] + 1.0) / (problem.limit[device] + 1.0))
    return max(short, 1e-3)


@kernel
def _best_plan(
    assigned: Ints, problem: ProblemArrays, schedules: Floats, sized: Floats, used: Floats
) -> tuple[float, float, int, float, Ints]:
    """Return cost, step time, schedule, time to size for, and stages of the cheapest plan found for an assignment.

    Layers are cut with a usual number of micro-batches, and with the others only if that holds nothing; the stages
    found are also tried with the others.
    """
    runs = 1
    for layer in range(1, len(assigned)):
        runs += assigned[layer] != assigned[layer - 1]
    best, best_s, schedule, best_target = np.inf, 0.0, -1, 0.0
    kept = np.empty((0, 3), np.int64)
    group = 1  # schedules with the same number of stages: one for each number of micro-batches
    while group < len(schedules) and schedules[group, 1] == schedules[0, 1]:
        group += 1
    usual = group // 2 if runs <= _FEW_RUNS else group - 1
    for others in range(2):
        for number in range(len(schedules)):
            slots = _slots(schedules, number)
            if (
                0 < slots.stages < runs
                or slots.stages > runs + 2
                or (number % group == usual) == (others == 1)
            ):
                continue
            if runs > _FEW_RUNS and _is_excluded(problem, slots, assigned, best):
                continue
            cutoff = _WORTH * best / problem.slowest
            found, taken, target, stages = best_cuts(problem, slots, assigned, cutoff, sized, used)
            if found < best:
                best, best_s, schedule, best_target, kept = found, taken, number, target, stages
            if others == 1 or found == np.inf or slots.stages != len(stages):
                continue
            for other in range(
                number - usual, number - usual + group
            ):  # the same stages with other micro-batches
                if other != number:
                    found, taken, target = sweep(
                        problem, _slots(schedules, other), stages, problem.slowest, sized, used
                    )
                    if found < best:
                        best, best_s, schedule, best_target, kept = found, taken, other, target, stages
        if best < np.inf:
            break
    return best, best_s, schedule, best_target, kept


@entry
def evaluate(
    assignments: Ints, problem: ProblemArrays, schedules: Floats, graded: bool
) -> tuple[Floats, Floats, Floats]:
    """Return for each assignment of types to layers: cost and time of a step, and, if `graded`, its shortfall.

    Cuts, places of tables, micro-batches and counts are the cheapest that are found (`best_cuts`).
    """
    count, layers = assignments.shape
    cost, step_s, short = np.full(count, np.inf), np.zeros(count), np.zeros(count)
    sized, used = np.empty((layers, 3)), np.zeros(len(problem.price))
    for row in range(count):
        cost[row], step_s[row], _, _, _ = _best_plan(assignments[row], problem, schedules, sized, used)
        if graded and cost[row] == np.inf:
            slots = _slots(schedules, 0)
            free = Slots(slots.micro, 0, slots.w_max, slots.w_sum, slots.in_flight)
            short[row] = shortfall(problem, free, assignments[row], used)
    return cost, step_s, short


@entry
def provisioned(assigned: Ints, problem: ProblemArrays, schedules: Floats) -> tuple[float, int, float, Ints]:
    """Return cost, schedule, time to size for, and stages of one assignment, as `evaluate` finds them."""
    sized, used = np.empty((len(assigned), 3)), np.zeros(len(problem.price))
    best, _, schedule, target, kept = _best_plan(assigned, problem, schedules, sized, used)
    return best, schedule, target, kept


@kernel
def _is_excluded(problem: ProblemArrays, slots: Slots, assigned: Ints, best: float) -> bool:
    """Return whether the work alone of any plan of a schedule costs as much as the best plan of another."""
    if best == np.inf:
        return False
    paths = empty_paths(problem, slots)
    least = forward(
        problem, slots, problem.price, problem.host_price, problem.slowest, WORK, best, assigned, paths
    )
    return least >= best


@kernel
def _slots(schedules: Floats, number: int) -> Slots:
    row = schedules[number]
    return Slots(row[0], int(row[1]), row[2], row[3], row[4])


@entry
def swept(problem: ProblemArrays, slots: Slots, stages: Ints, longest: float) -> tuple[float, float]:
    """Return the cost of a step of given stages at their cheapest step time up to `longest`, and its target."""
    sized, used = np.empty((len(stages), 3)), np.zeros(len(problem.price))
    cost, _, target = sweep(problem, slots, stages, longest, sized, used)
    return cost, target


@entry
def sized_at(
    problem: ProblemArrays, slots: Slots, stages: Ints, step_s: float
) -> tuple[float, float, Floats]:
    """Return price per hour, time of a step, and (replicas, servers, time) of each stage at a step time."""
    sized, used = np.zeros((len(stages), 3)), np.zeros(len(problem.price))
    rate, slowest = size(problem, slots, stages, step_s, sized, used, False)
    return rate, slowest, sized


@entry
def stage_parts(problem: ProblemArrays, slots: Slots, stages: Ints, replicas: Floats) -> Floats:
    """Return for each stage: step time, compute, in and out of one call, all-reduce, and server core-seconds."""
    found = np.zeros((len(stages), 6))
    for row in range(len(stages)):
        first, last, choice = stages[row, 0], stages[row, 1], stages[row, 2]
        taken, c, i, o, ring = stage_s(problem, slots, choice, first, last, replicas[row])
        found[row, 0], found[row, 1], found[row, 2], found[row, 3], found[row, 4] = taken, c, i, o, ring
        found[row, 5] = server_load(problem, slots, choice, first, last, replicas[row])
    return found
