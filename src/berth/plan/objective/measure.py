"""Cost of plans by a short real run: the model cut into stages, one process each, trained for a few batches.

Every stage computes forward, backward and an optimiser step on micro-batches that pass through shared memory. This
machine has a few cores and no GPU, so the devices of a plan are *emulated*: the time of each stage here is scaled by
the profile (stage on that type / stage here), and the event simulation combines the scaled stages with the links and
the synchronisation of the problem. The run corrects what a profile of single layers misses: layers together, small
micro-batches, the optimiser, varying times.

A cut is measured once: plans that differ only in types share the run. Times of a run are medians.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.cluster.catalogue import known_devices, resolve
from berth.errors import InputError
from berth.plan.evaluate import Assignments, BatchEvaluation, Evaluator
from berth.plan.objective.protocol import Evaluation
from berth.plan.objective.simulate import PipelineOptions, pipeline_settings
from berth.plan.objective.stage_processes import StageProcesses
from berth.plan.objective.stage_worker import StageTask, StageTimes
from berth.plan.problem import Problem
from berth.plan.profile.layer_profile import LayerProfile
from berth.zoo.catalogue import zoo
from berth.zoo.load import load_model

Floats = NDArray[np.float64]
StageRanges = tuple[tuple[int, int], ...]

_CORE = "cpu-core"


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Options of measured runs."""

    micro_batches: int = 4
    batches: int = 3  # measured, after one to warm up
    batch: int = 0  # examples; 0: as in the problem
    max_stages: int = 4  # a plan with more stages counts as infeasible: each stage is a process
    model: str = ""  # the model to run for a profile file: path.py:make_model
    here: str = ""  # the device type of this machine; default: the CPU
    lanes: float = 4.0  # as in the simulation

    def __post_init__(self) -> None:
        for name, least in (("micro_batches", 1), ("batches", 1), ("batch", 0), ("max_stages", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value}", hint=f"a whole number not below {least} is expected")


@dataclass(frozen=True)
class CutMeasurement:
    """The times of one cut of the model on this machine."""

    ranges: StageRanges
    passes_s: Floats  # [stage, 2] medians of forward, and of backward with its part of the step
    noise: Floats  # [micro-batch, stage] over the median
    wall_s: tuple[float, ...]  # wall-clock time of each batch
    moving_s: float  # of a micro-batch through shared memory, all stages
    losses: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Spread of the wall-clock time of a batch: (longest - shortest) / median."""
        return (max(self.wall_s) - min(self.wall_s)) / statistics.median(self.wall_s)


class MeasuredObjective:
    """Evaluates assignments by real runs, scaled to their devices (emulated)."""

    name = "measure"

    def __init__(
        self,
        problem: Problem,
        model: str | None,
        run: MeasureOptions | None = None,
        *,
        profile: LayerProfile | None = None,
        seed: int = 0,
    ) -> None:
        if model is None:
            raise InputError(
                "a JSON problem can't be measured",
                hint="name the model: berth plan MODEL --objective measure",
            )
        self.problem, self.run, self.seed = problem, run or MeasureOptions(), seed
        self.here_s = _here_s(problem, self.run.here, profile)
        model = _runnable(self.run.model or model, problem, seed)
        self.batch = self.run.batch or round(problem.batch)
        self.micro = min(self.run.micro_batches, self.batch)
        pipeline = PipelineOptions(
            micro_batches=self.micro, batches=self.run.batches, per_call=0.0, jitter=0.0, lanes=self.run.lanes
        )
        self.settings = pipeline_settings(problem, pipeline, profile, seed)
        self.processes = StageProcesses(model, self.run.max_stages, seed)
        self.records: dict[StageRanges, CutMeasurement] = {}

    def __enter__(self) -> MeasuredObjective:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments; those that the formula refuses are not run."""
        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        found = Evaluator(self.problem).formula(rows)
        for row, devices in enumerate(rows):
            stages = len(stage_ranges(devices))
            if found.shortfall[row] > 0:
                continue
            if stages > self.run.max_stages:
                found.cost_usd[row] = np.inf
                found.shortfall[row] = np.log(stages / self.run.max_stages)
                continue
            cost, time_s, _ = self._scaled(devices)
            found.cost_usd[row] = cost * self.problem.epochs * self.problem.samples / 3600
            found.stage_s[row] = time_s
            if not np.isfinite(cost):
                found.shortfall[row] = max(1e-3, float(np.log(time_s * self.problem.throughput)))
        return found

    def evaluate(self, assignment: Any) -> Evaluation:
        """Evaluate one assignment in full."""
        devices = np.asarray(assignment, np.int64)
        found = self(devices[None])
        cost, time_s = float(found.cost_usd[0]), float(found.stage_s[0])
        record = self.records.get(stage_ranges(devices))
        if not np.isfinite(cost) or record is None:
            return Evaluation(
                np.inf, 1 / time_s if time_s > 0 else 0.0, (), "emulated: does not hold the throughput"
            )
        _, _, replicas = self._scaled(devices)
        wall = statistics.median(record.wall_s)
        note = (
            f"emulated: stages ran here ({wall * 1e3:.3g} ms a batch of {self.batch}, spread "
            f"{record.spread:.0%}) and were scaled to their devices"
        )
        return Evaluation(
            cost, 1 / time_s, tuple(int(count) for count in replicas[: len(record.ranges)]), note
        )

    def close(self) -> None:
        """Stop the processes."""
        self.processes.close()

    def record(self, ranges: StageRanges) -> CutMeasurement:
        """Return the measurement of a cut; run it on first use."""
        if ranges not in self.records:
            piece = StageTask(0, 0, 0, 1, self.micro, self.batch // self.micro, self.run.batches, self.seed)
            self.records[ranges] = _record(ranges, self.processes.run(ranges, piece), self.run.batches)
        return self.records[ranges]

    def _scaled(self, devices: Assignments) -> tuple[float, float, Floats]:
        from berth.plan.objective.sizing import evaluate_measured

        record = self.record(stage_ranges(devices))
        here = np.array([self.here_s[first : last + 1].sum() for first, last in record.ranges])
        whole = self.problem.batch / (self.batch // self.micro)  # micro-batches of this size in a batch
        passes = record.passes_s * whole / here[:, None]
        cost, time_s, replicas = evaluate_measured(
            devices, self.problem.arrays, self.settings, passes, record.noise
        )
        return float(cost), float(time_s), replicas


def stage_ranges(assignment: Any) -> StageRanges:
    """Return (first, last) layer of every stage."""
    devices = np.asarray(assignment)
    edges = [0, *(np.flatnonzero(np.diff(devices)) + 1).tolist(), len(devices)]
    return tuple((first, after - 1) for first, after in pairwise(edges))


def _record(ranges: StageRanges, pieces: list[StageTimes], batches: int) -> CutMeasurement:
    forward = np.array([piece.forward_s for piece in pieces])
    backward = np.array([piece.backward_s for piece in pieces])
    micro = forward.shape[1] // batches
    step = np.array([statistics.median(piece.step_s) for piece in pieces]) / micro
    both = np.maximum(forward + backward, 1e-9)
    # One more batch than was measured: the simulation has a warm-up batch too.
    noise = np.concatenate([both[:, :micro], both], axis=1) / np.median(both, axis=1)[:, None]
    ended = np.array([piece.ended for piece in pieces]).max(axis=0)
    return CutMeasurement(
        ranges=ranges,
        passes_s=np.stack([np.median(forward, axis=1), np.median(backward, axis=1) + step], axis=1),
        noise=np.ascontiguousarray(noise.T),
        wall_s=tuple(np.diff(ended).tolist()),
        moving_s=sum(statistics.median(piece.moving_s) for piece in pieces),
        losses=tuple(pieces[-1].losses),
    )


def _runnable(model: str, problem: Problem, seed: int) -> str:
    """Return the model reference; raise if it is only a profile or its layers differ from the problem's."""
    if model.strip().lower() in zoo():
        return model
    if not model.partition(":")[0].endswith(".py"):
        raise InputError(
            "is a layer profile, but measure runs the model itself",
            where=model,
            hint="name the model: --objective measure:model=path.py:make_model",
        )
    layers = len(load_model(model, seed))
    if layers != len(problem.layers):
        raise InputError(
            f"has {layers} layers, but the profile has {len(problem.layers)}",
            where=model,
            hint="name the model that was profiled",
        )
    return model


def _here_s(problem: Problem, here: str, profile: LayerProfile | None) -> Floats:
    """Return the seconds of each layer on one device of this machine's type."""
    if here:
        return problem.oct_s[:, problem.type_index(here)].copy()
    for column, name in enumerate(problem.type_names):
        known = known_devices().get(resolve(name) or "")
        if known is not None and known.device.kind == "cpu":
            return problem.oct_s[:, column].copy()
    if profile is not None and _CORE in profile.device_names:
        return np.array(profile.on(_CORE).oct_s)
    raise InputError(
        "no device type of the problem is a CPU like this machine's", hint="name one: measure:here=NAME"
    )
