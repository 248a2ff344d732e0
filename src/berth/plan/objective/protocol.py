"""What every objective provides: the evaluation of assignments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from berth.plan.evaluate import Assignments, BatchEvaluation
from berth.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Cost and throughput of one assignment with the counts that the objective needs."""

    cost_usd: float  # infinite if the throughput is not held
    throughput: float  # examples per second
    plan: Plan | None  # with the counts that hold the throughput; None if it is not held
    note: str  # where the figures come from

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each stage; empty if the throughput is not held."""
        return tuple(stage.replicas for stage in self.plan.stages) if self.plan else ()

    @property
    def feasible(self) -> bool:
        """Whether the throughput is held."""
        return math.isfinite(self.cost_usd)


class Objective(Protocol):
    """Evaluates assignments, with the counts that they need under this objective."""

    name: str

    def __call__(self, assignments: Assignments) -> BatchEvaluation:
        """Evaluate a batch of assignments, [plan, layer]."""

    def evaluate(self, assignment: Any) -> Evaluation:
        """Evaluate one assignment in full."""

    def evaluate_plan(self, plan: Plan) -> Evaluation:
        """Evaluate a plan with its own counts."""
