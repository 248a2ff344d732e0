"""The result of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from berth.train.evaluate import Evaluation


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a run."""

    step: int
    examples: int
    loss: float  # mean of the last 50 steps
    auc: float  # of the last 65,536 examples, scored before training on them; NaN after the first epoch
    training_auc: float  # the same after the first epoch; NaN in the first
    examples_per_s: float
    cpu_ms_per_1000: float
    preempted: bool
    statistics: Mapping[str, Any]
    losses: list[float] = field(repr=False)  # of this run, by step
    model: nn.Module = field(repr=False)  # after `fit` it can predict
    evaluation: Evaluation | None = None  # the last one, of held-out data
    best: Evaluation | None = None  # the best one
    best_checkpoint: str | None = None  # its folder, if it was kept
    stopped_early: bool = False  # by patience
    # AUC and log loss by label, of several
    tasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        stop = "preempted" if self.preempted else "stopped early" if self.stopped_early else "done"
        figures = f"{self.examples:,} examples, loss {self.loss:.4f}{auc_text(self.auc, self.training_auc)}"
        return f"{stop} at step {self.step:,}: {figures}"


def auc_text(auc: float, training_auc: float, before: str = ", ") -> str:
    """Return the AUC with its name, or an empty string if there is none."""
    if not math.isnan(training_auc):
        return f"{before}training AUC {training_auc:.4f}"
    return "" if math.isnan(auc) else f"{before}AUC {auc:.4f}"
