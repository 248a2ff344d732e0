"""The number of replicas of each stage that makes a given assignment cheapest.

All stages are balanced around one stage time tau: stage i gets the fewest replicas with which it takes at most tau.
As tau falls, one stage after the other needs one more replica. `sweep` visits every such step from the slowest tau
allowed downwards, until no faster one can be cheaper: for tau below b

    cost >= fixed * fastest + sum of price * b * max(shared / (b - serial))

since `tau / (tau - serial)` only grows as tau falls.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import inlined, kernel
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

Floats = NDArray[np.float64]

# Columns of a stage.
TYPE, CS, CP, DS, DP, LEAST, REPLICAS, TIME, LAST = range(9)
STAGE_COLUMNS = 9

SLACK = 1e-9  # stage times that agree to nine digits are equal: the throughput is often met exactly
_NEVER = np.inf
_BOUND_EVERY = 4  # steps of `sweep` between two computations of its bound
FORBIDDEN_SHORT = 2.0  # shortfall for each layer on a type that is not allowed


@inlined
def replicas_for(serial: float, shared: float, tau: float) -> float:
    """Return the fewest replicas with `serial + shared / replicas <= tau`; infinite if no number is enough."""
    if serial > tau * (1 + SLACK):
        return _NEVER
    if shared <= 0.0:
        return 1.0
    rest = tau - serial
    if rest <= 0.0:
        return _NEVER
    return np.ceil(
        shared / rest * (1 - SLACK)
    )  # math.ceil would return an integer, which overflows in compiled code


@inlined
def min_replicas(replicated: float, sharded: float, memory: float) -> float:
    """Return the fewest replicas whose memory holds a stage; each has the replicated part and its shard."""
    if replicated + sharded <= memory:
        return 1.0
    if replicated >= memory:
        return _NEVER
    return np.ceil(sharded / (memory - replicated) * (1 - SLACK))


@kernel
def cut_stages(assignment: NDArray[np.int64], problem: ProblemArrays, stages: Floats) -> tuple[int, int]:
    """Write the stages (maximal runs of one type) of an assignment; return (stages, layers that are not allowed)."""
    layers, layer, cross = len(assignment), problem.layer, problem.cross
    count, begin, forbidden = 0, 0, 0
    while begin < layers:
        device = assignment[begin]
        cs = cp = ds = dp = replicated = sharded = 0.0
        if begin > 0:
            dp += cross[begin - 1]
        end = begin
        while end < layers and assignment[end] == device:
            forbidden += layer[device, end, FORBIDDEN] > 0
            cs += layer[device, end, COMPUTE_SERIAL]
            cp += layer[device, end, COMPUTE_SHARED]
            ds += layer[device, end, DATA_SERIAL]
            dp += layer[device, end, DATA_SHARED]
            replicated += layer[device, end, REPLICATED]
            sharded += layer[device, end, SHARDED]
            end += 1
        if end < layers:
            dp += cross[end - 1]
        stages[count, TYPE], stages[count, LAST] = device, end - 1
        stages[count, CS], stages[count, CP], stages[count, DS], stages[count, DP] = cs, cp, ds, dp
        stages[count, LEAST] = min_replicas(replicated, sharded, problem.memory[device])
        count += 1
        begin = end
    return count, forbidden


@inlined
def replicas_needed(stages: Floats, row: int, tau: float) -> float:
    """Return the replicas with which a stage takes at most tau."""
    computing = replicas_for(stages[row, CS], stages[row, CP], tau)
    moving = replicas_for(stages[row, DS], stages[row, DP], tau)
    return max(stages[row, LEAST], computing, moving)


@inlined
def stage_time(stages: Floats, row: int) -> float:
    """Return the stage's time per example; computation and communication overlap."""
    replicas = stages[row, REPLICAS]
    return max(stages[row, CS] + stages[row, CP] / replicas, stages[row, DS] + stages[row, DP] / replicas)


@kernel
def shortfall(stages: Floats, count: int, problem: ProblemArrays, used: Floats) -> float:
    """Return 0 if the throughput can be held, otherwise how much is missing as a sum of logarithms."""
    used[:] = 0.0
    short = 0.0
    tau = problem.slowest
    for row in range(count):
        device = int(stages[row, TYPE])
        replicas = replicas_needed(stages, row, tau)
        if replicas == _NEVER:
            serial = max(stages[row, CS], stages[row, DS])
            short += 1.0 + (math.log(serial / tau) if serial > tau else 0.0)
            replicas = 1.0
        stages[row, REPLICAS] = replicas
        used[device] += replicas
    for device in range(len(used)):
        if used[device] > problem.limit[device]:
            short += math.log((used[device] + 1.0) / (problem.limit[device] + 1.0))
    return short


@kernel
def sweep(
    stages: Floats, count: int, problem: ProblemArrays, used: Floats, replicas: Floats
) -> tuple[float, float]:
    """Find the cheapest replicas of stages that can hold the throughput; return (cost per example, stage time).

    `stages[:, REPLICAS]` and `used` must be those of the slowest tau allowed, as `shortfall` leaves them.
    """
    best, best_s = _NEVER, 0.0
    price, limit = problem.price, problem.limit
    rate = problem.fixed
    floor, slowest = 0.0, 0.0
    for row in range(count):
        rate += price[int(stages[row, TYPE])] * stages[row, REPLICAS]
        floor = max(floor, stages[row, CS], stages[row, DS])
        stages[row, TIME] = stage_time(stages, row)
        slowest = max(slowest, stages[row, TIME])
    step = 0
    while True:
        if slowest * rate < best:
            best, best_s = slowest * rate, slowest
            for row in range(count):
                replicas[row] = stages[row, REPLICAS]
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
        # Every faster tau is below `slowest` and costs at least `rate` per hour, so it must also be below
        # best / rate to be cheaper.
        target = min(slowest, best / rate) * (1 - SLACK)
        slowest = 0.0
        for row in range(count):
            if stages[row, TIME] >= target:
                device = int(stages[row, TYPE])
                wanted = max(stages[row, REPLICAS] + 1.0, replicas_needed(stages, row, target * (1 - SLACK)))
                more = wanted - stages[row, REPLICAS]
                used[device] += more
                if used[device] > limit[device]:
                    return best, best_s
                rate += price[device] * more
                stages[row, REPLICAS] = wanted
                stages[row, TIME] = stage_time(stages, row)
            slowest = max(slowest, stages[row, TIME])
