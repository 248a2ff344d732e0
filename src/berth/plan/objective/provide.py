"""Whole units for an assignment such that the simulated pipeline holds the throughput, as cheaply as it can.

A short estimate stands in for the simulation while units are tried: fill and drain through all stages, then
one micro-batch after the other at the slowest stage. Units are balanced around one stage time, which is
lowered until the estimate is fast enough; then units that the estimate does not need are taken away. The
simulation of these units says how far off the estimate is; the target is corrected by that ratio and all is
done again, a few times. The number of micro-batches is that with which the estimate costs least.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from berth.compile import entry, kernel
from berth.plan.objective.pace import Setting, estimate, simulated_s
from berth.plan.provision import (
    CP,
    CS,
    FORBIDDEN_SHORT,
    LAST,
    LEAST,
    SLACK,
    STAGE_COLUMNS,
    TYPE,
    UNITS,
    cut,
    need,
    shortfall,
    stage_s,
    sweep,
)  # fmt: skip
from berth.plan.tables import Tables

Floats = NDArray[np.float64]
Types = NDArray[np.int64]

_ROUNDS = 5  # simulations of one assignment at most, before faster targets are tried
_BALANCE = 24  # stage times tried to meet a target
_NEAR = 0.98  # a stage time this near to one that the limits allow is not sought further
_FASTER = 0.85  # targets below the limit: what is fixed costs less when the training is over sooner
_FASTER_TRIES = 8
_FEWER_TRIES = 6
_MOST_NOISE, _LEAST_NOISE = 3.0, 0.2


@entry
def judge(
    assignments: Types, problem: Tables, setting: Setting, passes: Floats
) -> tuple[Floats, Floats, Floats, Floats, Types]:
    """Of each assignment: cost per example, its time, shortfall, units of its stages, micro-batches."""
    count, layers = assignments.shape
    cost = np.full(count, np.inf)
    time_s = np.zeros(count)
    short = np.zeros(count)
    units = np.zeros((count, layers))
    micro = np.zeros(count, np.int64)
    stages = np.zeros((layers, STAGE_COLUMNS))
    used = np.zeros(len(problem.price))
    for row in range(count):
        found, forbidden = cut(assignments[row], problem, stages)
        short[row] = shortfall(stages, found, problem, used) + forbidden * FORBIDDEN_SHORT
        if short[row] > 0:
            continue
        noise = _noise(assignments[row], stages[:found], problem, setting)
        cost[row], time_s[row], micro[row] = provide(
            stages[:found], problem, setting, passes, noise, used, units[row]
        )
        if not cost[row] < np.inf:
            short[row] = max(1e-3, math.log(time_s[row] / problem.slowest))
    return cost, time_s, short, units, micro


@entry
def replay(
    assignment: Types, problem: Tables, setting: Setting, passes: Floats, noise: Floats
) -> tuple[float, float, Floats]:
    """One assignment with passes and noise of its own, [stage, 2] and [micro-batch, stage]: as `judge`."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    used = np.zeros(len(problem.price))
    units = np.zeros(len(assignment))
    found, _ = cut(assignment, problem, stages)
    cost, time_s, _ = provide(stages[:found], problem, setting, passes, noise, used, units)
    return cost, time_s, units


@entry
def with_units_s(
    assignment: Types, units: Floats, problem: Tables, setting: Setting, passes: Floats
) -> float:
    """Seconds per example of an assignment with units given by hand."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    found, _ = cut(assignment, problem, stages)
    noise = _noise(assignment, stages[:found], problem, setting)
    stages[:found, UNITS] = units[:found]
    micro = setting.micro
    if micro == 0:
        best = np.inf
        trial = 1
        while trial <= setting.most_micro:
            taken = estimate(stages[:found], problem, setting, passes, trial)
            if taken < best:
                best, micro = taken, trial
            trial *= 2
    return simulated_s(stages[:found], problem, setting, passes, noise, micro)


@kernel
def _noise(assignment: Types, stages: Floats, problem: Tables, setting: Setting) -> Floats:
    """[micro-batch, stage]: layers vary by themselves, a stage by the sum of its layers."""
    drawn = len(setting.normals)
    noise = np.ones((drawn, len(stages)))
    begin = 0
    for row in range(len(stages)):
        kind, end = int(stages[row, TYPE]), int(stages[row, LAST]) + 1
        whole = stages[row, CS] + stages[row, CP]
        for layer in range(begin, end):
            weight = (problem.layer[kind, layer, 0] + problem.layer[kind, layer, 1]) / whole
            weight *= setting.sigma[layer, kind]
            if weight > 0:
                for micro in range(drawn):
                    noise[micro, row] += weight * setting.normals[micro, layer]
        begin = end
    return np.minimum(np.maximum(noise, _LEAST_NOISE), _MOST_NOISE)


@kernel
def provide(
    stages: Floats,
    problem: Tables,
    setting: Setting,
    passes: Floats,
    noise: Floats,
    used: Floats,
    units: Floats,
) -> tuple[float, float, int]:
    """(cost per example, seconds per example, micro-batches); units are written if the throughput is held."""
    slowest = problem.slowest
    micro = _best_micro(stages, problem, setting, passes, used)
    target, before = slowest, np.zeros(len(stages))
    # First the units of the closed formula: where it is the truth there are no better ones.
    best, best_s, closest = _formula(stages, problem, setting, passes, noise, used, micro, units)
    high, low = np.inf, 0.0  # targets that were too slow, and fast enough
    for _ in range(_ROUNDS):
        guess = balance(stages, problem, setting, passes, used, micro, target, True)
        if np.all(before == stages[:, UNITS]):
            break
        before[:] = stages[:, UNITS]
        taken = simulated_s(stages, problem, setting, passes, noise, micro)
        closest = min(closest, taken)
        best, best_s = _keep(stages, problem, taken, best, best_s, units)
        if taken > slowest * (1 + SLACK):
            if guess > target * (1 + SLACK):
                break  # the limits allow no more units
            high = min(high, target)
        else:
            low = max(low, target)
        target = slowest * guess / taken * (1 - SLACK)
        if not low < target < high:
            target = math.sqrt(low * high) if low > 0 and high < np.inf else 0.7 * high
    if best < np.inf:
        stages[:, UNITS] = units[: len(stages)]
        best, best_s = _fewer(stages, problem, setting, passes, noise, micro, best, best_s, units)
    if problem.fixed > 0 and best < np.inf:
        target = slowest
        for _ in range(_FASTER_TRIES):
            target *= _FASTER
            guess = balance(stages, problem, setting, passes, used, micro, target, True)
            if guess > target * (1 + SLACK) or guess * _rate(stages, problem) > best * 1.05:
                break
            taken = simulated_s(stages, problem, setting, passes, noise, micro)
            best, best_s = _keep(stages, problem, taken, best, best_s, units)
    return best, best_s if best < np.inf else closest, micro


@kernel
def _fewer(
    stages: Floats,
    problem: Tables,
    setting: Setting,
    passes: Floats,
    noise: Floats,
    micro: int,
    best: float,
    best_s: float,
    units: Floats,
) -> tuple[float, float]:
    """Takes units away, the dearest first, for as long as the simulation holds and gets cheaper."""
    tries = 0
    for kind in np.argsort(-problem.price):
        for row in range(len(stages)):
            step = max(1.0, stages[row, UNITS] // 8)
            while int(stages[row, TYPE]) == kind and stages[row, UNITS] - step >= stages[row, LEAST]:
                if tries == _FEWER_TRIES:
                    return best, best_s
                tries += 1
                stages[row, UNITS] -= step
                taken = simulated_s(stages, problem, setting, passes, noise, micro)
                before = best
                best, best_s = _keep(stages, problem, taken, best, best_s, units)
                if best == before:
                    stages[row, UNITS] += step
                    break
    return best, best_s


@kernel
def _formula(
    stages: Floats,
    problem: Tables,
    setting: Setting,
    passes: Floats,
    noise: Floats,
    used: Floats,
    micro: int,
    units: Floats,
) -> tuple[float, float, float]:
    """Cost and time with the formula's units if they hold the throughput, and the time in any case."""
    if shortfall(stages, len(stages), problem, used) > 0:
        return np.inf, 0.0, np.inf
    found = np.zeros(len(stages))
    sweep(stages, len(stages), problem, used, found)
    stages[:, UNITS] = found
    taken = simulated_s(stages, problem, setting, passes, noise, micro)
    best, best_s = _keep(stages, problem, taken, np.inf, 0.0, units)
    return best, best_s, taken


@kernel
def _keep(
    stages: Floats, problem: Tables, taken: float, best: float, best_s: float, units: Floats
) -> tuple[float, float]:
    cost = taken * _rate(stages, problem)
    if taken > problem.slowest * (1 + SLACK) or cost >= best:
        return best, best_s
    units[: len(stages)] = stages[:, UNITS]
    return cost, taken


@kernel
def _rate(stages: Floats, problem: Tables) -> float:
    rate = problem.fixed
    for row in range(len(stages)):
        rate += problem.price[int(stages[row, TYPE])] * stages[row, UNITS]
    return rate


@kernel
def _best_micro(stages: Floats, problem: Tables, setting: Setting, passes: Floats, used: Floats) -> int:
    """The number of micro-batches with which the estimate costs least, or is fastest if none holds."""
    if setting.micro > 0:
        return setting.micro
    best, best_s, found = np.inf, np.inf, 1
    micro = 1
    while micro <= setting.most_micro:
        taken = balance(stages, problem, setting, passes, used, micro, problem.slowest, False)
        cost = taken * _rate(stages, problem) if taken <= problem.slowest * (1 + SLACK) else np.inf
        if cost < best or (best == np.inf and cost == np.inf and taken < best_s):
            best, best_s, found = cost, taken, micro
        micro *= 2
    return found


@kernel
def balance(
    stages: Floats,
    problem: Tables,
    setting: Setting,
    passes: Floats,
    used: Floats,
    micro: int,
    target: float,
    thrifty: bool,
) -> float:
    """Writes units with which the estimate takes at most `target`, and returns it; above: as near as can be.

    `thrifty`: without units that the estimate does not need.
    """
    tau = held = problem.slowest
    taken = np.inf
    for _ in range(_BALANCE):
        if not _units_at(stages, problem, used, tau):
            if tau > held * _NEAR:
                break
            tau = 0.5 * (tau + held)
            continue
        held = tau
        taken = estimate(stages, problem, setting, passes, micro)
        if taken <= target * (1 + SLACK):
            if not thrifty:
                return taken
            _take_away(stages, problem, setting, passes, micro, target)
            return estimate(stages, problem, setting, passes, micro)
        slowest = 0.0
        for row in range(len(stages)):
            slowest = max(slowest, stage_s(stages, row))
        tau = min(tau * target / taken, slowest * (1 - 2 * SLACK))
    return taken


@kernel
def _units_at(stages: Floats, problem: Tables, used: Floats, tau: float) -> bool:
    """Every stage gets the units with which it takes at most tau; none gets any if the limits forbid it."""
    used[:] = 0.0
    for row in range(len(stages)):
        kind = int(stages[row, TYPE])
        used[kind] += need(stages, row, tau)
        if used[kind] > problem.limit[kind]:
            return False
    for row in range(len(stages)):
        stages[row, UNITS] = need(stages, row, tau)
    return True


@kernel
def _take_away(
    stages: Floats, problem: Tables, setting: Setting, passes: Floats, micro: int, target: float
) -> None:
    """Units that the estimate does not need, the dearest types first, one stage after the other."""
    for kind in np.argsort(-problem.price):
        for row in range(len(stages)):
            if int(stages[row, TYPE]) != kind:
                continue
            step = stages[row, UNITS] // 2
            while step >= 1:  # many of hundreds of cores at a time, then fewer
                if stages[row, UNITS] - step >= stages[row, LEAST]:
                    stages[row, UNITS] -= step
                    if estimate(stages, problem, setting, passes, micro) > target * (1 + SLACK):
                        stages[row, UNITS] += step
                step //= 2
