"""How a model is split into stages, from a plan or evenly, and which rank runs which stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from berth.errors import InputError


@dataclass(frozen=True, slots=True)
class StageCut:
    """One stage: layers `first` to `last` (inclusive) on a device type."""

    first: int
    last: int
    device_type: str = "cpu"
    planned_replicas: int | None = None  # devices in the plan; one process per pipeline runs the stage
    slowdown: float = 1.0  # of an emulated device, relative to a core of this machine


@dataclass(frozen=True, slots=True)
class Layout:
    """Pipelines of stages; each pipeline trains on its share of every batch.

    Ranks of a pipeline are consecutive: rank = pipeline x stages + stage.
    """

    pipelines: int
    stages: int

    @property
    def world_size(self) -> int:
        """Return the number of worker processes."""
        return self.pipelines * self.stages

    def pipeline(self, rank: int) -> int:
        """Return the pipeline of a rank."""
        return rank // self.stages

    def stage(self, rank: int) -> int:
        """Return the stage of a rank."""
        return rank % self.stages

    def rank(self, pipeline: int, stage: int) -> int:
        """Return the rank of a stage of a pipeline."""
        return pipeline * self.stages + stage

    def stage_ranks(self, stage: int) -> list[int]:
        """Return the ranks that run the same layers."""
        return [self.rank(pipeline, stage) for pipeline in range(self.pipelines)]


def cuts_from_plan(
    path: str | Path, model: str, layers: Sequence[str], slowdowns: Mapping[str, float]
) -> list[StageCut]:
    """Return the stages of a plan file, checked against the model."""
    from berth.plan.files import check_plan

    checked = check_plan(path)
    if checked.violations:
        where, what = checked.violations[0]
        raise InputError(what, where=where, hint="`berth plan check` lists all problems")
    names = list(checked.plan.problem.layers)
    planned = checked.request.model
    by_profile = planned is not None and planned.endswith((".yaml", ".yml"))  # a file, which names no model
    if (not by_profile and planned not in (None, model)) or list(layers) != names:
        again = f"berth profile ... --out {planned}, then " if by_profile else ""
        raise InputError(
            f"this plan is for {planned or 'another model'} with {len(names)} layers,"
            f" not for {model} with {len(layers)}",
            where=str(path),
            hint=f"make one: {again}berth plan {planned if by_profile else model} --out plan.yaml ...",
        )
    device_types = {stage.type_name for stage in checked.plan.stages}
    unknown = [device_type for device_type in slowdowns if device_type not in device_types]
    if unknown:
        raise InputError(
            f"the plan does not use {unknown[0]}",
            where=str(path),
            hint=f"it uses {', '.join(sorted(device_types))}",
        )
    return [
        StageCut(
            stage.first, stage.last, stage.type_name, stage.replicas, slowdowns.get(stage.type_name, 1.0)
        )
        for stage in checked.plan.stages
    ]


def even_cuts(layers: int, stages: int) -> list[StageCut]:
    """Return stages with as equal a number of layers as possible."""
    if not 1 <= stages <= layers:
        raise InputError(f"a model of {layers} layers can have 1 to {layers} stages, got {stages}")
    bounds = [layers * number // stages for number in range(stages + 1)]
    return [StageCut(first, after - 1) for first, after in pairwise(bounds)]
