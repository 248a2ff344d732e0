"""How a model is split into stages, and which rank runs which stage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from berth.errors import InputError


@dataclass(frozen=True, slots=True)
class StageCut:
    """One stage: layers `first` to `last` (inclusive) on a device type."""

    first: int
    last: int
    device_type: str = "cpu"
    slowdown: float = 1.0  # of an emulated device, relative to a core of this machine
    device: str = "cpu"  # the torch device that runs it


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of replicas of each stage, each a process.

    Ranks of a stage are consecutive, those of the first stage come first.
    """

    replicas: tuple[int, ...] = (1,)

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return len(self.replicas)

    @property
    def world_size(self) -> int:
        """Return the number of worker processes."""
        return sum(self.replicas)

    @property
    def readers(self) -> int:
        """Return the number of processes that read data: the replicas of the first stage."""
        return self.replicas[0]

    def stage(self, rank: int) -> int:
        """Return the stage of a rank."""
        return next(stage for stage, end in enumerate(accumulate(self.replicas)) if rank < end)

    def replica(self, rank: int) -> int:
        """Return which replica of its stage a rank is."""
        return rank - sum(self.replicas[: self.stage(rank)])

    def rank(self, stage: int, replica: int) -> int:
        """Return the rank of a replica of a stage."""
        return sum(self.replicas[:stage]) + replica

    def stage_ranks(self, stage: int) -> list[int]:
        """Return the ranks that run the same layers."""
        return [self.rank(stage, replica) for replica in range(self.replicas[stage])]

    def __str__(self) -> str:
        return " + ".join(map(str, self.replicas))


def even_cuts(layers: int, stages: int) -> list[StageCut]:
    """Return stages with as equal a number of layers as possible."""
    if not 1 <= stages <= layers:
        raise InputError(f"a model of {layers} layers can have 1 to {layers} stages, got {stages}")
    bounds = [layers * number // stages for number in range(stages + 1)]
    return [StageCut(first, after - 1) for first, after in pairwise(bounds)]
