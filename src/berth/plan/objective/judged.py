"""What an objective says of one plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from berth.plan.evaluate import Evaluated, Types


@dataclass(frozen=True, slots=True)
class Judged:
    """Cost and rate with the units that the objective asks for; without units the throughput is not held."""

    cost_usd: float
    throughput: float  # examples per second
    units: tuple[int, ...]  # of each stage
    note: str  # where the figures are from

    @property
    def feasible(self) -> bool:
        """Whether the throughput is held."""
        return math.isfinite(self.cost_usd)


class Truth(Protocol):
    """An objective for searches, which also says which units it gave."""

    name: str

    def __call__(self, assignments: Types) -> Evaluated:
        """A batch of assignments, [plan, layer]."""

    def judge(self, assignment: Any) -> Judged:
        """One assignment in full."""

    def close(self) -> None:
        """Ends whatever runs for it."""
