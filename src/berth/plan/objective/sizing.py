"""Sizes the stages of an assignment so that the simulated pipeline holds the throughput at low cost.

A quick estimate replaces the simulation while replicas are tried: fill and drain through all stages, then one
micro-batch after the other at the slowest stage. Replicas are balanced around one stage time, which is lowered until
the estimate is fast enough; then replicas that the estimate does not need are removed. The simulation of the result
shows the error of the estimate; the target is corrected by that ratio, a few times. The number of micro-batches is
the one with the lowest estimated cost.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import entry, kernel
from berth.plan.arrays import COMPUTE_SERIAL, COMPUTE_SHARED, ProblemArrays
from berth.plan.objective.step_time import PipelineSettings, estimate, simulated_s
from berth.plan.provision import (
    CP,
    CS,
    FORBIDDEN_SHORT,
    LAST,
    LEAST,
    REPLICAS,
    SLACK,
    STAGE_COLUMNS,
    TYPE,
    cut_stages,
    replicas_needed,
    shortfall,
    stage_time,
    sweep,
)  # fmt: skip

Floats = NDArray[np.float64]
Assignments = NDArray[np.int64]

_ROUNDS = 5  # maximum number of simulations of one assignment before faster targets are tried
_BALANCE = 24  # stage times tried to meet a target
_NEAR = 0.98  # stop searching this close to a stage time that the limits allow
_FASTER = 0.85  # step between faster targets: a shorter training pays the fixed price for less time
_FASTER_TRIES = 8
_TRIM_TRIES = 6
_MAX_NOISE, _MIN_NOISE = 3.0, 0.2


@entry
def evaluate_simulated(
    assignments: Assignments, problem: ProblemArrays, settings: PipelineSettings, passes: Floats
) -> tuple[Floats, Floats, Floats, Floats, Assignments]:
    """Return for each assignment: cost per example, its time, shortfall, replicas of its stages, micro-batches."""
    count, layers = assignments.shape
    cost = np.full(count, np.inf)
    time_s = np.zeros(count)
    short = np.zeros(count)
    replicas = np.zeros((count, layers))
    micro = np.zeros(count, np.int64)
    stages = np.zeros((layers, STAGE_COLUMNS))
    used = np.zeros(len(problem.price))
    for row in range(count):
        found, forbidden = cut_stages(assignments[row], problem, stages)
        short[row] = shortfall(stages, found, problem, used) + forbidden * FORBIDDEN_SHORT
        if short[row] > 0:
            continue
        noise = _noise(assignments[row], stages[:found], problem, settings)
        cost[row], time_s[row], micro[row] = size_stages(
            stages[:found], problem, settings, passes, noise, used, replicas[row]
        )
        if not cost[row] < np.inf:
            short[row] = max(1e-3, math.log(time_s[row] / problem.slowest))
    return cost, time_s, short, replicas, micro


@entry
def evaluate_measured(
    assignment: Assignments, problem: ProblemArrays, settings: PipelineSettings, passes: Floats, noise: Floats
) -> tuple[float, float, Floats]:
    """Return cost, time and replicas of one assignment with measured passes [stage, 2] and noise [micro, stage]."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    used = np.zeros(len(problem.price))
    replicas = np.zeros(len(assignment))
    found, _ = cut_stages(assignment, problem, stages)
    cost, time_s, _ = size_stages(stages[:found], problem, settings, passes, noise, used, replicas)
    return cost, time_s, replicas


@entry
def seconds_with_replicas(
    assignment: Assignments,
    replicas: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
) -> float:
    """Return seconds per example of an assignment with given replicas."""
    stages = np.zeros((len(assignment), STAGE_COLUMNS))
    found, _ = cut_stages(assignment, problem, stages)
    noise = _noise(assignment, stages[:found], problem, settings)
    stages[:found, REPLICAS] = replicas[:found]
    micro = settings.micro
    if micro == 0:
        best = np.inf
        trial = 1
        while trial <= settings.max_micro:
            taken = estimate(stages[:found], problem, settings, passes, trial)
            if taken < best:
                best, micro = taken, trial
            trial *= 2
    return simulated_s(stages[:found], problem, settings, passes, noise, micro)


@kernel
def _noise(
    assignment: Assignments, stages: Floats, problem: ProblemArrays, settings: PipelineSettings
) -> Floats:
    """Return the noise of each [micro-batch, stage]: layers vary independently, a stage by the sum of its layers."""
    drawn = len(settings.normals)
    noise = np.ones((drawn, len(stages)))
    begin = 0
    for row in range(len(stages)):
        device, end = int(stages[row, TYPE]), int(stages[row, LAST]) + 1
        whole = stages[row, CS] + stages[row, CP]
        for layer in range(begin, end):
            times = problem.layer[device, layer]
            weight = (times[COMPUTE_SERIAL] + times[COMPUTE_SHARED]) / whole
            weight *= settings.sigma[layer, device]
            if weight > 0:
                for micro in range(drawn):
                    noise[micro, row] += weight * settings.normals[micro, layer]
        begin = end
    return np.minimum(np.maximum(noise, _MIN_NOISE), _MAX_NOISE)


@kernel
def size_stages(
    stages: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
    noise: Floats,
    used: Floats,
    replicas: Floats,
) -> tuple[float, float, int]:
    """Return (cost per example, seconds per example, micro-batches); write replicas if they hold the throughput."""
    slowest = problem.slowest
    micro = _best_micro(stages, problem, settings, passes, used)
    target, before = slowest, np.zeros(len(stages))
    # Start with the closed formula's replicas: without noise and waits they are the best.
    best, best_s, closest = _formula_replicas(stages, problem, settings, passes, noise, used, micro, replicas)
    high, low = np.inf, 0.0  # targets that were too slow, and that were fast enough
    for _ in range(_ROUNDS):
        guess = balance(stages, problem, settings, passes, used, micro, target, True)
        if np.all(before == stages[:, REPLICAS]):
            break
        before[:] = stages[:, REPLICAS]
        taken = simulated_s(stages, problem, settings, passes, noise, micro)
        closest = min(closest, taken)
        best, best_s = _keep_if_better(stages, problem, taken, best, best_s, replicas)
        if taken > slowest * (1 + SLACK):
            if guess > target * (1 + SLACK):
                break  # the limits allow no more replicas
            high = min(high, target)
        else:
            low = max(low, target)
        target = slowest * guess / taken * (1 - SLACK)
        if not low < target < high:
            target = math.sqrt(low * high) if low > 0 and high < np.inf else 0.7 * high
    if best < np.inf:
        stages[:, REPLICAS] = replicas[: len(stages)]
        best, best_s = _trim_simulated(
            stages, problem, settings, passes, noise, micro, best, best_s, replicas
        )
    if problem.fixed > 0 and best < np.inf:
        target = slowest
        for _ in range(_FASTER_TRIES):
            target *= _FASTER
            guess = balance(stages, problem, settings, passes, used, micro, target, True)
            if guess > target * (1 + SLACK) or guess * _rate(stages, problem) > best * 1.05:
                break
            taken = simulated_s(stages, problem, settings, passes, noise, micro)
            best, best_s = _keep_if_better(stages, problem, taken, best, best_s, replicas)
    return best, best_s if best < np.inf else closest, micro


@kernel
def _trim_simulated(
    stages: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
    noise: Floats,
    micro: int,
    best: float,
    best_s: float,
    replicas: Floats,
) -> tuple[float, float]:
    """Remove replicas, the most expensive first, while the simulation holds the throughput and gets cheaper."""
    tries = 0
    for device in np.argsort(-problem.price):
        for row in range(len(stages)):
            step = max(1.0, stages[row, REPLICAS] // 8)
            while int(stages[row, TYPE]) == device and stages[row, REPLICAS] - step >= stages[row, LEAST]:
                if tries == _TRIM_TRIES:
                    return best, best_s
                tries += 1
                stages[row, REPLICAS] -= step
                taken = simulated_s(stages, problem, settings, passes, noise, micro)
                before = best
                best, best_s = _keep_if_better(stages, problem, taken, best, best_s, replicas)
                if best == before:
                    stages[row, REPLICAS] += step
                    break
    return best, best_s


@kernel
def _formula_replicas(
    stages: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
    noise: Floats,
    used: Floats,
    micro: int,
    replicas: Floats,
) -> tuple[float, float, float]:
    """Return cost and time with the formula's replicas if they hold the throughput, and the time in any case."""
    if shortfall(stages, len(stages), problem, used) > 0:
        return np.inf, 0.0, np.inf
    found = np.zeros(len(stages))
    sweep(stages, len(stages), problem, used, found)
    stages[:, REPLICAS] = found
    taken = simulated_s(stages, problem, settings, passes, noise, micro)
    best, best_s = _keep_if_better(stages, problem, taken, np.inf, 0.0, replicas)
    return best, best_s, taken


@kernel
def _keep_if_better(
    stages: Floats, problem: ProblemArrays, taken: float, best: float, best_s: float, replicas: Floats
) -> tuple[float, float]:
    cost = taken * _rate(stages, problem)
    if taken > problem.slowest * (1 + SLACK) or cost >= best:
        return best, best_s
    replicas[: len(stages)] = stages[:, REPLICAS]
    return cost, taken


@kernel
def _rate(stages: Floats, problem: ProblemArrays) -> float:
    rate = problem.fixed
    for row in range(len(stages)):
        rate += problem.price[int(stages[row, TYPE])] * stages[row, REPLICAS]
    return rate


@kernel
def _best_micro(
    stages: Floats, problem: ProblemArrays, settings: PipelineSettings, passes: Floats, used: Floats
) -> int:
    """Return the number of micro-batches with the lowest estimated cost, or the fastest if none is fast enough."""
    if settings.micro > 0:
        return settings.micro
    best, best_s, found = np.inf, np.inf, 1
    micro = 1
    while micro <= settings.max_micro:
        taken = balance(stages, problem, settings, passes, used, micro, problem.slowest, False)
        cost = taken * _rate(stages, problem) if taken <= problem.slowest * (1 + SLACK) else np.inf
        if cost < best or (best == np.inf and cost == np.inf and taken < best_s):
            best, best_s, found = cost, taken, micro
        micro *= 2
    return found


@kernel
def balance(
    stages: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
    used: Floats,
    micro: int,
    target: float,
    trim: bool,
) -> float:
    """Write replicas with which the estimate takes at most `target`, or as close as possible; return the estimate.

    `trim` removes replicas that the estimate does not need.
    """
    tau = held = problem.slowest
    taken = np.inf
    for _ in range(_BALANCE):
        if not _replicas_at(stages, problem, used, tau):
            if tau > held * _NEAR:
                break
            tau = 0.5 * (tau + held)
            continue
        held = tau
        taken = estimate(stages, problem, settings, passes, micro)
        if taken <= target * (1 + SLACK):
            if not trim:
                return taken
            _trim_estimated(stages, problem, settings, passes, micro, target)
            return estimate(stages, problem, settings, passes, micro)
        slowest = 0.0
        for row in range(len(stages)):
            slowest = max(slowest, stage_time(stages, row))
        tau = min(tau * target / taken, slowest * (1 - 2 * SLACK))
    return taken


@kernel
def _replicas_at(stages: Floats, problem: ProblemArrays, used: Floats, tau: float) -> bool:
    """Give every stage the replicas with which it takes at most tau; change nothing if the limits forbid it."""
    used[:] = 0.0
    for row in range(len(stages)):
        device = int(stages[row, TYPE])
        used[device] += replicas_needed(stages, row, tau)
        if used[device] > problem.limit[device]:
            return False
    for row in range(len(stages)):
        stages[row, REPLICAS] = replicas_needed(stages, row, tau)
    return True


@kernel
def _trim_estimated(
    stages: Floats,
    problem: ProblemArrays,
    settings: PipelineSettings,
    passes: Floats,
    micro: int,
    target: float,
) -> None:
    """Remove replicas that the estimate does not need, from the most expensive types first."""
    for device in np.argsort(-problem.price):
        for row in range(len(stages)):
            if int(stages[row, TYPE]) != device:
                continue
            step = stages[row, REPLICAS] // 2
            while step >= 1:  # large steps first: there may be hundreds of cores
                if stages[row, REPLICAS] - step >= stages[row, LEAST]:
                    stages[row, REPLICAS] -= step
                    if estimate(stages, problem, settings, passes, micro) > target * (1 + SLACK):
                        stages[row, REPLICAS] += step
                step //= 2
