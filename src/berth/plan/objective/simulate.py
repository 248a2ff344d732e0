"""Judges plans by event simulation of their training steps; see berth.plan.objective.pipeline for the events.

Beyond the closed formula: micro-batches fill and drain the pipeline and wait for each other at NICs, servers and
readers; calls vary, and a synchronous step waits for the slowest replica. Every figure is modelled.

One replica stands for all of a stage. They are alike (the same examples per call on the same share of a NIC), and
differ by chance only. A synchronous step ends when the slowest of them has ended, so the one that is simulated is
the slowest of k: the time of its m calls together is drawn as the largest of k such sums (exactly: the k-th root of
a uniform number through the inverse normal distribution), and its calls vary around that. The slowest replicas of
all stages meet in one pipeline here; in a real one they need not, so a step is never faster than it is here because
of that. Where k_i and k_i+1 differ, a replica sends and receives in parts, the same bytes in total as its calls have.
Without a barrier no replica waits for the slowest: calls vary around their mean.

Servers and readers share every call among their cores (rows are spread by key), so a pool of n cores serves like one
that is n times as fast. The formula rents them for a load of `UTILISATION`, because requests queue beyond it; here
they do queue, so they serve at their full speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.plan.evaluate import Assignments, BatchEvaluation, Evaluator
from berth.plan.objective import pipeline as tasks
from berth.plan.objective.protocol import Evaluation
from berth.plan.plan import Plan, Stage, cheapest
from berth.plan.problem import (
    COMPUTE,
    EXCHANGE,
    IN,
    OPTIMISER_S,
    OUT,
    SERVER_CPU,
    SERVER_NIC,
    SYNC_BYTES,
    Problem,
)
from berth.plan.profile.layer_profile import along
from berth.plan.world import UTILISATION

Floats = NDArray[np.float64]

FORWARD_SHARE = 1 / 3  # a backward pass computes about twice what the forward does
STEP_PRECISION = 1e-3  # of a simulated throughput
STREAM_PRECISION = 5e-3  # the same without a barrier, where calls end in bunches
UNMEASURED = 0.05  # relative standard deviation of calls on a device that was not measured
_LARGEST_VARIATION = 0.25  # a larger measured one comes from other users of the machine
_FASTEST = 0.1  # factor on the time of a call
_STREAM_FLIGHT = 6  # micro-batches in flight for each stage of a stream
_AHEAD = 4  # micro-batches of a step whose rows are asked for, or whose pushes are under way, beside those in flight
_STREAM_WARM_UP = 4  # calls of a stream before those that count, for each micro-batch in flight
MARGIN_ROUNDS = 6  # problems solved for more than asked until a plan holds
_MORE = 0.002  # beyond the ratio of asked and reached throughput, doubled in every round


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation."""

    steps: int = 8  # simulated, after a first one
    variation: float | None = None  # relative standard deviation of calls; None: as measured, else 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise InputError(f"steps is {self.steps}", hint="a whole number not below 1 is expected")
        if self.variation is not None and not 0 <= self.variation <= 1:
            raise InputError(f"variation is {self.variation}", hint="a number from 0 to 1 is expected")


def simulated_throughput(plan: Plan, options: SimulationOptions | None = None, seed: int = 0) -> float:
    """Return the examples per second of a plan with its own counts; 0 if it can't train at all."""
    options = options or SimulationOptions()
    seconds = task_seconds(plan)
    if not np.isfinite(seconds).all():
        return 0.0
    streams = not plan.problem.micro
    first, steps = 1, options.steps + 1
    flight, ahead = plan.schedule.in_flight, _AHEAD
    if streams:
        flight = _STREAM_FLIGHT * len(plan.stages)
        ahead = 2 * flight
        first, steps = _STREAM_WARM_UP * flight, (_STREAM_WARM_UP + options.steps) * flight
    factors = _factors(plan, options.variation, steps, streams, seed)
    ends = tasks.step_ends(
        seconds, factors, micro=plan.micro, flight=flight, ahead=ahead, steps=steps, streams=streams
    )
    return float(plan.problem.batch * (steps - first) / (ends[-1] - ends[first - 1]))


def holds(problem: Problem, throughput: float) -> bool:
    """Return whether a simulated throughput is the one asked for, to the precision of the simulation."""
    return throughput >= problem.throughput * (1 - precision(problem))


def precision(problem: Problem) -> float:
    """Return the precision of a simulated throughput."""
    return STEP_PRECISION if problem.micro else STREAM_PRECISION


def next_target(target: float, asked: float, reached: float, count: int) -> float:
    """Return the throughput to size for if the plan for `target` reaches less than asked, in round `count` from 0."""
    return target * asked / reached * (1 + _MORE * 2**count)


def next_price(target: float, most: float, simulated: float, count: int) -> float:
    """Return the price to plan for if the plan for `target` costs more than `most`, in round `count` from 0."""
    return target * most / simulated / (1 + _MORE * 2**count)


def task_seconds(plan: Plan) -> Floats:
    """Return the seconds of every task of a micro-batch (of a step: REDUCE and OPTIMISE), [task, stage]."""
    problem, micro = plan.problem, plan.micro
    found = np.zeros((tasks.TASKS, len(plan.stages)))
    for row, stage in enumerate(plan.stages):
        found[:, row] = _stage_seconds(problem, stage, micro)
    if problem.host.readers_s > 0:
        reading = problem.host.readers_s * UTILISATION / micro
        found[tasks.READ, 0] = reading / plan.readers if plan.readers else math.inf
    return found


def exchange_seconds(problem: Problem, stage: Stage, micro: int) -> float:
    """Return the seconds, in each direction, of the all-to-all of rows of a micro-batch; 0 if there is none."""
    curve = problem.curves[stage.choice, stage.first : stage.last + 1, EXCHANGE].sum(axis=0)
    examples = problem.batch / (stage.replicas * micro)
    return float(along(problem.grid, curve, examples)) * (stage.replicas - 1) / stage.replicas


def _stage_seconds(problem: Problem, stage: Stage, micro: int) -> Floats:
    first, last, choice = stage.first, stage.last, stage.choice
    examples = problem.batch / (stage.replicas * micro)
    curves = problem.curves[choice, first : last + 1].sum(axis=0)
    at = along(problem.grid, curves, examples)
    facts = problem.facts[choice, first : last + 1].sum(axis=0)
    found = np.zeros(tasks.TASKS)
    exchanged = exchange_seconds(problem, stage, micro)
    found[tasks.PULL], found[tasks.PUSH] = at[IN] + exchanged, at[OUT] + exchanged
    message, packing = problem.arrays.message[choice]
    computed = at[COMPUTE]
    if first > 0:
        forward, backward, copied = problem.cross[choice, first - 1] * examples
        found[tasks.ARRIVE_F], found[tasks.SEND_B] = forward + message, backward + message
        computed += copied + packing
    if last + 1 < len(problem.layers):
        forward, backward, copied = problem.cross[choice, last] * examples
        found[tasks.SEND_F], found[tasks.ARRIVE_B] = forward + message, backward + message
        computed += copied + packing
    found[tasks.FORWARD] = computed * FORWARD_SHARE
    found[tasks.BACKWARD] = computed - found[tasks.FORWARD]
    serving = stage.replicas * max(at[SERVER_CPU], at[SERVER_NIC]) * UTILISATION
    if serving > 0:
        each = serving / stage.servers / 2 if stage.servers else math.inf
        found[tasks.LOOKUP], found[tasks.UPDATE] = each, each
    found[tasks.OPTIMISE] = facts[OPTIMISER_S] + problem.loop_s
    if facts[SYNC_BYTES] > 0:
        ring = problem.ring[problem.choices[choice].device]
        per_byte, once = ring[:, min(stage.replicas, ring.shape[1] - 1)]
        found[tasks.REDUCE] = facts[SYNC_BYTES] * per_byte + once
    return found


def _factors(plan: Plan, variation: float | None, steps: int, streams: bool, seed: int) -> Floats:
    """Return the factors on the computation of each call, [micro-batch, stage]."""
    draw = np.random.default_rng(seed)
    columns = []
    for stage in plan.stages:
        sigma = _variation(plan.problem, stage) if variation is None else variation
        drawn = _stream_draws(draw, steps) if streams else _slowest_draws(draw, steps, plan.micro, stage)
        columns.append(np.maximum(_FASTEST, 1 + sigma * drawn))
    return np.ascontiguousarray(np.stack(columns, axis=1))


def _stream_draws(draw: np.random.Generator, steps: int) -> Floats:
    """Return normal draws in pairs of opposite sign: their mean is exact."""
    half = draw.standard_normal((steps + 1) // 2)
    return np.stack([half, -half], axis=1).ravel()[:steps]


def _slowest_draws(draw: np.random.Generator, steps: int, micro: int, stage: Stage) -> Floats:
    """Return normal draws of all calls of the slowest replica in each step.

    The sums of the steps after the first are spread evenly over their distribution: few steps have its mean.
    """
    each = draw.standard_normal((steps, micro))
    even = np.concatenate([[0.5], (draw.permutation(steps - 1) + 0.5) / (steps - 1)])
    normal = NormalDist()
    largest = np.array([normal.inv_cdf(share ** (1 / stage.replicas)) for share in even])
    each += (largest / math.sqrt(micro) - each.mean(axis=1))[:, None]
    return each.ravel()


def _variation(problem: Problem, stage: Stage) -> float:
    """Return how much calls vary, as a standard deviation: as measured; stated times do not vary."""
    if problem.source is None:
        return 0.0
    device = problem.source.devices[problem.choices[stage.choice].device]
    times = problem.source.profile.on(device)
    return min(times.uncertainty, _LARGEST_VARIATION) if times.is_measured else UNMEASURED


class SimulatedObjective:
    """Evaluates assignments by their cheapest plan that holds the throughput in the simulation."""

    name = "simulate"

    def __init__(self, problem: Problem, options: SimulationOptions | None = None, *, seed: int = 0) -> None:
        self.problem, self.options, self.seed = problem, options or SimulationOptions(), seed
        self._formula = Evaluator(problem)

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments, [plan, layer]."""
        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        found = self._formula.formula(rows)
        for row, devices in enumerate(rows):
            if found.shortfall[row] > 0:
                continue
            one = self.evaluate(devices)
            found.cost_usd[row], found.stage_s[row] = one.cost_usd, 1 / one.throughput
            if not one.feasible:
                found.shortfall[row] = max(1e-3, math.log(self.problem.throughput / one.throughput))
        return found

    def evaluate(self, assignment: Any) -> Evaluation:
        """Evaluate one assignment in full: sized for more than asked if the simulation needs that."""
        asked, target, fastest = self.problem.throughput, self.problem.throughput, 0.0
        for count in range(MARGIN_ROUNDS):
            plan = cheapest(self.problem.at(target), assignment)
            if plan is None:
                break
            found = self.evaluate_plan(plan)
            if found.feasible:
                return found
            fastest = max(fastest, found.throughput)
            target = next_target(target, asked, found.throughput, count)
        return _refused(fastest)

    def evaluate_plan(self, plan: Plan) -> Evaluation:
        """Evaluate a plan with its own counts."""
        reached, problem = self.throughput_of(plan), self.problem
        if not holds(problem, reached):
            return _refused(reached)
        hours = problem.epochs * problem.samples / reached / 3600
        how = f"micro-batches per step: {plan.micro}" if problem.micro else "without steps"
        return Evaluation(hours * plan.usd_per_hour, reached, plan, f"modelled, {how}")

    def throughput_of(self, plan: Plan) -> float:
        """Return the examples per second of a plan with its own counts."""
        return simulated_throughput(plan, self.options, self.seed)


def _refused(throughput: float) -> Evaluation:
    return Evaluation(math.inf, throughput, None, "modelled: does not hold the throughput")
