"""How many units each stage of a given assignment gets, so that it is cheapest.

All stages are balanced around one stage time tau: stage i needs the fewest whole units with which it takes
at most tau. As tau falls, one stage after the other needs a unit more. `sweep` visits every such step from
the slowest tau allowed downwards, until no faster one can be cheaper: for tau below b

    cost >= fixed * fastest + sum of price * b * max(shared / (b - serial))

since `tau / (tau - serial)` only grows as tau falls.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from berth.compile import inlined, kernel
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

# Columns of a stage.
TYPE, CS, CP, DS, DP, LEAST, UNITS, TIME, LAST = range(9)
STAGE_COLUMNS = 9

SLACK = 1e-9  # stage times that agree to nine digits are equal: throughput limits are often met exactly
_NEVER = np.inf
_BOUND_EVERY = 4  # steps of `sweep` between two looks at its bound
FORBIDDEN_SHORT = 2.0  # shortfall for each layer where it may not run


@inlined
def units_for(serial: float, shared: float, tau: float) -> float:
    """The fewest units with which `serial + shared / units <= tau`; infinite if none are enough."""
    if serial > tau * (1 + SLACK):
        return _NEVER
    if shared <= 0.0:
        return 1.0
    rest = tau - serial
    if rest <= 0.0:
        return _NEVER
    return np.ceil(shared / rest * (1 - SLACK))  # math.ceil would be an integer, which compiled code wraps


@inlined
def least_units(replicated: float, sharded: float, memory: float) -> float:
    """The fewest units that hold a stage: each holds all of one part and its share of the other."""
    if replicated + sharded <= memory:
        return 1.0
    if replicated >= memory:
        return _NEVER
    return np.ceil(sharded / (memory - replicated) * (1 - SLACK))


@kernel
def cut(assignment: NDArray[np.int64], problem: Tables, stages: Floats) -> tuple[int, int]:
    """Writes the stages (maximal runs of one type) of an assignment: (their number, layers where forbidden)."""
    layers, layer, cross = len(assignment), problem.layer, problem.cross
    count, begin, forbidden = 0, 0, 0
    while begin < layers:
        kind = assignment[begin]
        cs = cp = ds = dp = replicated = sharded = 0.0
        if begin > 0:
            dp += cross[begin - 1]
        end = begin
        while end < layers and assignment[end] == kind:
            forbidden += layer[kind, end, FORBIDDEN] > 0
            cs += layer[kind, end, COMPUTE_SERIAL]
            cp += layer[kind, end, COMPUTE_SHARED]
            ds += layer[kind, end, DATA_SERIAL]
            dp += layer[kind, end, DATA_SHARED]
            replicated += layer[kind, end, REPLICATED]
            sharded += layer[kind, end, SHARDED]
            end += 1
        if end < layers:
            dp += cross[end - 1]
        stages[count, TYPE], stages[count, LAST] = kind, end - 1
        stages[count, CS], stages[count, CP], stages[count, DS], stages[count, DP] = cs, cp, ds, dp
        stages[count, LEAST] = least_units(replicated, sharded, problem.memory[kind])
        count += 1
        begin = end
    return count, forbidden


@inlined
def need(stages: Floats, row: int, tau: float) -> float:
    """Units with which a stage takes at most tau."""
    computing = units_for(stages[row, CS], stages[row, CP], tau)
    moving = units_for(stages[row, DS], stages[row, DP], tau)
    return max(stages[row, LEAST], computing, moving)


@inlined
def stage_s(stages: Floats, row: int) -> float:
    """The stage's time per example with the units it has: computation and communication overlap."""
    units = stages[row, UNITS]
    return max(stages[row, CS] + stages[row, CP] / units, stages[row, DS] + stages[row, DP] / units)


@kernel
def shortfall(stages: Floats, count: int, problem: Tables, used: Floats) -> float:
    """0 if the throughput wanted can be held; else how far it is from that: a sum of logarithms."""
    used[:] = 0.0
    short = 0.0
    tau = problem.slowest
    for row in range(count):
        kind = int(stages[row, TYPE])
        units = need(stages, row, tau)
        if units == _NEVER:
            serial = max(stages[row, CS], stages[row, DS])
            short += 1.0 + (math.log(serial / tau) if serial > tau else 0.0)
            units = 1.0
        stages[row, UNITS] = units
        used[kind] += units
    for kind in range(len(used)):
        if used[kind] > problem.limit[kind]:
            short += math.log((used[kind] + 1.0) / (problem.limit[kind] + 1.0))
    return short


@kernel
def sweep(stages: Floats, count: int, problem: Tables, used: Floats, units: Floats) -> tuple[float, float]:
    """The cheapest whole units for stages that can hold the throughput: (cost per example, stage time).

    `stages[:, UNITS]` and `used` must be those of the slowest tau allowed, as `shortfall` leaves them.
    """
    best, best_s = _NEVER, 0.0
    price, limit = problem.price, problem.limit
    rate = problem.fixed
    floor, slowest = 0.0, 0.0
    for row in range(count):
        rate += price[int(stages[row, TYPE])] * stages[row, UNITS]
        floor = max(floor, stages[row, CS], stages[row, DS])
        stages[row, TIME] = stage_s(stages, row)
        slowest = max(slowest, stages[row, TIME])
    step = 0
    while True:
        if slowest * rate < best:
            best, best_s = slowest * rate, slowest
            for row in range(count):
                units[row] = stages[row, UNITS]
        if floor >= slowest * (1 - SLACK):
            return best, best_s
        if step % _BOUND_EVERY == 0:
            least = problem.fixed * floor
            for row in range(count):
                share = max(
                    stages[row, CP] / (slowest - stages[row, CS]),
                    stages[row, DP] / (slowest - stages[row, DS]),
                )
                least += price[int(stages[row, TYPE])] * slowest * share
            if least >= best:
                return best, best_s
        step += 1
        # Every faster tau is below `slowest`, and costs at least `rate` per hour: one that is not below
        # best / rate can't be cheaper either.
        target = min(slowest, best / rate) * (1 - SLACK)
        slowest = 0.0
        for row in range(count):
            if stages[row, TIME] >= target:
                kind = int(stages[row, TYPE])
                wanted = max(stages[row, UNITS] + 1.0, need(stages, row, target * (1 - SLACK)))
                more = wanted - stages[row, UNITS]
                used[kind] += more
                if used[kind] > limit[kind]:
                    return best, best_s
                rate += price[kind] * more
                stages[row, UNITS] = wanted
                stages[row, TIME] = stage_s(stages, row)
            slowest = max(slowest, stages[row, TIME])
