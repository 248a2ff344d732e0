"""What every objective provides: the evaluation of assignments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from berth.plan.evaluate import Assignments, BatchEvaluation


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Cost and throughput of one plan with the replicas that the objective needs."""

    cost_usd: float  # infinite if the throughput is not held
    throughput: float  # examples per second
    replicas: tuple[int, ...]  # of each stage; empty if the throughput is not held
    note: str  # where the figures come from

    @property
    def feasible(self) -> bool:
        """Whether the throughput is held."""
        return math.isfinite(self.cost_usd)


class Objective(Protocol):
    """Evaluates assignments, with the replicas that they need under this objective."""

    name: str

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments, [plan, layer]."""

    def evaluate(self, assignment: Any) -> Evaluation:
        """Evaluate one assignment in full."""

    def close(self) -> None:
        """Release processes and other resources."""
