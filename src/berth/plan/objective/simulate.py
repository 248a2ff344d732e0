"""Cost of plans by event simulation of their pipeline; see berth.plan.objective.pipeline for the events.

Beyond the closed formula: batches fill and drain the pipeline (or follow without a wait), every micro-batch repeats
the serial part of the computation (which was measured as the cost that remains for a smaller part of the batch),
layer times vary, and crossings between the same two types share a link. Not simulated: the slowest of several replicas
(a fitted alpha has some of it), memory of micro-batches in flight, failures. Every figure is modelled. Random numbers
are drawn once: equal seeds give equal results, and plans are compared on the same draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError
from berth.plan.evaluate import Assignments, BatchEvaluation
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.step_time import ALL, F1B1, FILL_DRAIN, NO_LINK, PAIRS, STREAM, PipelineSettings
from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.profile.layer_profile import LayerProfile

Floats = NDArray[np.float64]

SCHEDULES = {"1f1b": F1B1, "fill-drain": FILL_DRAIN, "stream": STREAM}
SHARED = {"none": NO_LINK, "pair": PAIRS, "all": ALL}
FORWARD_SHARE = 1 / 3  # a backward pass computes about twice what the forward does
_NORMAL_QUARTILES = 1.349  # distance of the quartiles of a normal distribution, in standard deviations
_MAX_SIGMA = 0.25  # a larger measured spread comes from other users of the machine


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of a simulated pipeline."""

    micro_batches: int = 0  # 0: the best of 1, 2, 4 .. for each plan
    max_micro_batches: int = 8
    schedule: str = "1f1b"  # or fill-drain, or stream: no batch waits for synchronisation
    sync_every: int = 1  # batches between two waits for the synchronisation
    batches: int = 2  # measured, after a first one
    per_call: float = 1.0  # share of the serial computation that every micro-batch repeats
    shared: str = "pair"  # links are shared by crossings of the same two types, by all, by none
    lanes: float = 4.0  # bandwidth of a shared link, in links of one device
    jitter: float | None = None  # relative spread of layers; None: as measured, else 0.05

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UnknownNameError("schedule", self.schedule, SCHEDULES)
        if self.shared not in SHARED:
            raise UnknownNameError("way to share links", self.shared, SHARED)
        for name, least in (
            ("micro_batches", 0),
            ("max_micro_batches", 1),
            ("sync_every", 1),
            ("batches", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value}", hint=f"a whole number not below {least} is expected")
        if not 0 <= self.per_call <= 1:
            raise InputError(f"per_call is {self.per_call}", hint="a number from 0 to 1 is expected")
        if not self.lanes > 0:
            raise InputError(f"lanes is {self.lanes}", hint="a number above 0 is expected")
        if self.jitter is not None and not 0 <= self.jitter <= 1:
            raise InputError(f"jitter is {self.jitter}", hint="a number from 0 to 1 is expected")


class SimulatedObjective:
    """Evaluates assignments with replicas that hold the throughput in the simulation."""

    name = "simulate"

    def __init__(
        self,
        problem: Problem,
        pipeline: PipelineOptions | None = None,
        *,
        profile: LayerProfile | None = None,
        seed: int = 0,
    ) -> None:
        self.problem = problem
        self.pipeline = pipeline or PipelineOptions()
        self.settings = pipeline_settings(problem, self.pipeline, profile, seed)
        share = (FORWARD_SHARE, 1 - FORWARD_SHARE)
        self.passes = np.tile(np.array(share), (len(problem.layers), 1))

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments, [plan, layer]."""
        cost, time_s, short, _, _ = self._evaluate(assignments)
        return BatchEvaluation(cost * (self.problem.epochs * self.problem.samples / 3600), time_s, short)

    def evaluate(self, assignment: Any) -> Evaluation:
        """Evaluate one assignment in full."""
        devices = np.asarray(assignment, np.int64)[None]
        cost, time_s, _, replicas, micro = self._evaluate(devices)
        stages = 1 + int(np.count_nonzero(np.diff(devices[0])))
        held = bool(np.isfinite(cost[0]))
        return Evaluation(
            cost_usd=float(cost[0]) * self.problem.epochs * self.problem.samples / 3600,
            throughput=1 / float(time_s[0]) if time_s[0] > 0 else 0.0,
            replicas=tuple(int(count) for count in replicas[0, :stages]) if held else (),
            note=f"modelled, {self.pipeline.schedule}, micro-batches per batch: {int(micro[0])}",
        )

    def throughput_of(self, plan: Plan) -> float:
        """Return examples per second of a plan with its own replicas."""
        from berth.plan.objective.sizing import seconds_with_replicas

        replicas = np.array([float(stage.replicas) for stage in plan.stages])
        devices = np.array(plan.assignment, np.int64)
        return 1 / float(
            seconds_with_replicas(devices, replicas, self.problem.arrays, self.settings, self.passes)
        )

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _evaluate(self, assignments: Assignments) -> tuple[Floats, Floats, Floats, Floats, Assignments]:
        from berth.plan.objective.sizing import evaluate_simulated

        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        return evaluate_simulated(rows, self.problem.arrays, self.settings, self.passes)


def pipeline_settings(
    problem: Problem, pipeline: PipelineOptions, profile: LayerProfile | None, seed: int
) -> PipelineSettings:
    """Return the options as the kernels read them."""
    most = pipeline.micro_batches or pipeline.max_micro_batches
    if most > problem.batch:
        most = max(1, int(problem.batch))
    layers = len(problem.layers)
    drawn = most * pipeline.sync_every * (pipeline.batches + 1)
    return PipelineSettings(
        batch=problem.batch,
        micro=min(pipeline.micro_batches, most),
        max_micro=most,
        schedule=SCHEDULES[pipeline.schedule],
        group=pipeline.sync_every,
        batches=pipeline.batches,
        per_call=pipeline.per_call,
        shared=SHARED[pipeline.shared] if np.isfinite(pipeline.lanes) else NO_LINK,
        lanes=pipeline.lanes,
        cross_forward=_cross_forward(profile, layers),
        sigma=_sigma(problem, pipeline.jitter, profile),
        normals=np.random.default_rng(seed).standard_normal((drawn, layers)),
    )


def _cross_forward(profile: LayerProfile | None, layers: int) -> Floats:
    """Return the share of each crossing that is activations; the rest is gradients on the way back."""
    if profile is None:
        return np.full(layers, 0.5)
    return np.array([layer.output_bytes / max(1, layer.cross_bytes) for layer in profile.layers])


def _sigma(problem: Problem, jitter: float | None, profile: LayerProfile | None) -> Floats:
    """Return the spread of each [layer, type]; a type that was not measured varies like the one that was."""
    shape = (len(problem.layers), len(problem.types))
    if jitter is None and profile is not None:
        measured = {times.device: times.spread for times in profile.devices if times.spread}
        if measured:
            first = next(iter(measured.values()))
            columns = [measured.get(name, first) for name in problem.type_names]
            return np.minimum(np.array(columns).T / _NORMAL_QUARTILES, _MAX_SIGMA).copy()
    return np.full(shape, (0.05 if jitter is None else jitter) / _NORMAL_QUARTILES)
