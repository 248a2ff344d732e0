"""Where a model is cut, and who runs which part: from a plan, or evenly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from berth.errors import InputError


@dataclass(frozen=True, slots=True)
class StageCut:
    """Layers `first` to `last` (included), on a kind of device."""

    first: int
    last: int
    kind: str = "cpu"
    planned: int | None = None  # units of the kind; one process runs them, in each lane
    slow_down: float = 1.0  # of an emulated device, beside this machine's cores


@dataclass(frozen=True, slots=True)
class Layout:
    """Lanes of stages: each lane is a pipeline of its own over its share of every batch.

    Ranks of a lane follow each other: rank = lane x stages + stage.
    """

    lanes: int
    stages: int

    @property
    def world(self) -> int:
        """How many processes that takes."""
        return self.lanes * self.stages

    def lane(self, rank: int) -> int:
        """Which pipeline a rank belongs to."""
        return rank // self.stages

    def stage(self, rank: int) -> int:
        """Where in it."""
        return rank % self.stages

    def rank(self, lane: int, stage: int) -> int:
        """Who that is."""
        return lane * self.stages + stage

    def together(self, stage: int) -> list[int]:
        """The ranks that run the same layers."""
        return [self.rank(lane, stage) for lane in range(self.lanes)]


def cuts_of_plan(
    path: str | Path, model: str, layers: Sequence[str], slow_downs: Mapping[str, float]
) -> list[StageCut]:
    """The stages of a plan's file, checked against the model that is to be trained."""
    from berth.plan.files import check_plan

    checked = check_plan(path)
    if checked.violations:
        where, what = checked.violations[0]
        raise InputError(what, where=where, hint="`berth plan check` lists all that is wrong")
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
    kinds = {stage.type_name for stage in checked.plan.stages}
    unknown = [kind for kind in slow_downs if kind not in kinds]
    if unknown:
        raise InputError(
            f"the plan uses no {unknown[0]}", where=str(path), hint=f"it has {', '.join(sorted(kinds))}"
        )
    return [
        StageCut(
            stage.first, stage.last, stage.type_name, stage.replicas, slow_downs.get(stage.type_name, 1.0)
        )
        for stage in checked.plan.stages
    ]


def even_cuts(layers: int, stages: int) -> list[StageCut]:
    """As many layers in each stage as can be."""
    if not 1 <= stages <= layers:
        raise InputError(f"a model of {layers} layers has 1 to {layers} stages, not {stages}")
    bounds = [layers * number // stages for number in range(stages + 1)]
    return [StageCut(first, after - 1) for first, after in pairwise(bounds)]
