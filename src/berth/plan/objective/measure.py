"""What plans cost by a real short run: the model cut into stages, one process each, trained for a few batches.

Every stage really computes forward, backward and an optimiser's step on micro-batches that flow through shared
memory. But this machine has a few cores and no GPU, so a plan's devices are *emulated*: the time that each
stage took here is scaled by what the profile says of the device and of as many units (stage on that type /
stage here), and the pipeline of the scaled stages is put together by the event simulation, on links and
synchronisation as the problem has them. A device can't be made faster than its profile; what the run corrects
is what the profile of single layers misses: layers together, small micro-batches, the optimiser, uneven times.

A cut is measured once: plans that differ in types only share the run. Times of a run are medians.
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
from berth.plan.evaluate import Evaluated, Evaluator, Types
from berth.plan.objective.crew import Crew
from berth.plan.objective.judged import Judged
from berth.plan.objective.simulate import Pipeline, setting_for
from berth.plan.objective.stagework import Piece, PieceTimes
from berth.plan.problem import Problem
from berth.plan.profile.document import LayerProfile
from berth.zoo.catalogue import zoo
from berth.zoo.load import load_model

Floats = NDArray[np.float64]
Cuts = tuple[tuple[int, int], ...]

_CORE = "cpu-core"


@dataclass(frozen=True, slots=True)
class Run:
    """The options of measured runs."""

    micro_batches: int = 4
    batches: int = 3  # measured, after one to warm up
    batch: int = 0  # examples; 0: as in the problem
    most_stages: int = 4  # a plan with more stages counts as infeasible: each is a process here
    model: str = ""  # what to run for a profile of your own: path.py:make_model
    here: str = ""  # the problem's type that this machine is; by default its CPU
    lanes: float = 4.0  # as in the simulation

    def __post_init__(self) -> None:
        for name, least in (("micro_batches", 1), ("batches", 1), ("batch", 0), ("most_stages", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is {value}", hint=f"a whole number not below {least} is expected")


@dataclass(frozen=True)
class Record:
    """What one cut of the model took on this machine."""

    cuts: Cuts
    passes_s: Floats  # [stage, 2] medians of forward, and of backward with its part of the step
    noise: Floats  # [micro-batch, stage] over the median
    wall_s: tuple[float, ...]  # of each batch, all stages together
    moving_s: float  # of a micro-batch through shared memory, all stages
    losses: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Of a batch on the wall's clock: (longest - shortest) / median."""
        return (max(self.wall_s) - min(self.wall_s)) / statistics.median(self.wall_s)


class Measured:
    """An objective: assignments in, what they cost by real runs scaled to their devices (emulated)."""

    name = "measure"

    def __init__(
        self,
        problem: Problem,
        model: str | None,
        run: Run | None = None,
        *,
        profile: LayerProfile | None = None,
        seed: int = 0,
    ) -> None:
        if model is None:
            raise InputError(
                "a bare problem can't be measured",
                hint="name the model: berth plan MODEL --objective measure",
            )
        self.problem, self.run, self.seed = problem, run or Run(), seed
        self.here_s = _here_s(problem, self.run.here, profile)
        model = _runnable(self.run.model or model, problem, seed)
        self.batch = self.run.batch or round(problem.batch)
        self.micro = min(self.run.micro_batches, self.batch)
        pipeline = Pipeline(
            micro_batches=self.micro, batches=self.run.batches, per_call=0.0, jitter=0.0, lanes=self.run.lanes
        )
        self.setting = setting_for(problem, pipeline, profile, seed)
        self.crew = Crew(model, self.run.most_stages, seed)
        self.records: dict[Cuts, Record] = {}

    def __enter__(self) -> Measured:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, assignments: Types) -> Evaluated:
        """A batch of assignments; what the formula already refuses is not run."""
        rows = np.ascontiguousarray(np.atleast_2d(assignments), dtype=np.int64)
        found = Evaluator(self.problem).formula(rows)
        for row, kinds in enumerate(rows):
            stages = len(cuts_of(kinds))
            if found.shortfall[row] > 0:
                continue
            if stages > self.run.most_stages:
                found.cost_usd[row] = np.inf
                found.shortfall[row] = np.log(stages / self.run.most_stages)
                continue
            cost, time_s, _ = self._replayed(kinds)
            found.cost_usd[row] = cost * self.problem.epochs * self.problem.samples / 3600
            found.stage_s[row] = time_s
            if not np.isfinite(cost):
                found.shortfall[row] = max(1e-3, float(np.log(time_s * self.problem.throughput)))
        return found

    def judge(self, assignment: Any) -> Judged:
        """One assignment in full."""
        kinds = np.asarray(assignment, np.int64)
        found = self(kinds[None])
        cost, time_s = float(found.cost_usd[0]), float(found.stage_s[0])
        record = self.records.get(cuts_of(kinds))
        if not np.isfinite(cost) or record is None:
            return Judged(np.inf, 1 / time_s if time_s > 0 else 0.0, (), "emulated: does not hold")
        _, _, units = self._replayed(kinds)
        wall = statistics.median(record.wall_s)
        note = (
            f"emulated: stages ran here ({wall * 1e3:.3g} ms a batch of {self.batch}, spread "
            f"{record.spread:.0%}) and were scaled to their devices"
        )
        return Judged(cost, 1 / time_s, tuple(int(count) for count in units[: len(record.cuts)]), note)

    def close(self) -> None:
        """Ends the processes."""
        self.crew.close()

    def record(self, cuts: Cuts) -> Record:
        """The run of a cut, now or earlier."""
        if cuts not in self.records:
            piece = Piece(0, 0, 0, 1, self.micro, self.batch // self.micro, self.run.batches, self.seed)
            self.records[cuts] = _record(cuts, self.crew.run(cuts, piece), self.run.batches)
        return self.records[cuts]

    def _replayed(self, kinds: Types) -> tuple[float, float, Floats]:
        from berth.plan.objective.provide import replay

        record = self.record(cuts_of(kinds))
        here = np.array([self.here_s[first : last + 1].sum() for first, last in record.cuts])
        whole = self.problem.batch / (self.batch // self.micro)  # micro-batches of this size in a batch
        passes = record.passes_s * whole / here[:, None]
        cost, time_s, units = replay(kinds, self.problem.tables, self.setting, passes, record.noise)
        return float(cost), float(time_s), units


def cuts_of(assignment: Any) -> Cuts:
    """(first, last) layer of every stage."""
    kinds = np.asarray(assignment)
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    return tuple((first, after - 1) for first, after in pairwise(edges))


def _record(cuts: Cuts, pieces: list[PieceTimes], batches: int) -> Record:
    forward = np.array([piece.forward_s for piece in pieces])
    backward = np.array([piece.backward_s for piece in pieces])
    micro = forward.shape[1] // batches
    step = np.array([statistics.median(piece.step_s) for piece in pieces]) / micro
    both = np.maximum(forward + backward, 1e-9)
    # One batch more than was measured: the simulation warms up too.
    noise = np.concatenate([both[:, :micro], both], axis=1) / np.median(both, axis=1)[:, None]
    ended = np.array([piece.ended for piece in pieces]).max(axis=0)
    return Record(
        cuts=cuts,
        passes_s=np.stack([np.median(forward, axis=1), np.median(backward, axis=1) + step], axis=1),
        noise=np.ascontiguousarray(noise.T),
        wall_s=tuple(np.diff(ended).tolist()),
        moving_s=sum(statistics.median(piece.moving_s) for piece in pieces),
        losses=tuple(pieces[-1].losses),
    )


def _runnable(model: str, problem: Problem, seed: int) -> str:
    """The model as it can be loaded; an error if it is only a profile, or has other layers than the problem."""
    if model.strip().lower() in zoo():
        return model
    if not model.partition(":")[0].endswith(".py"):
        raise InputError(
            "is a profile of layers, and measure runs the model itself",
            where=model,
            hint="say where the model is: --objective measure:model=path.py:make_model",
        )
    layers = len(load_model(model, seed))
    if layers != len(problem.layers):
        raise InputError(
            f"has {layers} layers, and the profile {len(problem.layers)}",
            where=model,
            hint="name the model that was profiled",
        )
    return model


def _here_s(problem: Problem, here: str, profile: LayerProfile | None) -> Floats:
    """Seconds of each layer on one unit of the type that this machine is."""
    if here:
        return problem.oct_s[:, problem.type_index(here)].copy()
    for column, name in enumerate(problem.type_names):
        known = known_devices().get(resolve(name) or "")
        if known is not None and known.device.kind == "cpu":
            return problem.oct_s[:, column].copy()
    if profile is not None and _CORE in profile.device_names:
        return np.array(profile.on(_CORE).oct_s)
    raise InputError(
        "no device of the problem is a CPU like this machine's", hint="say which is: measure:here=NAME"
    )
