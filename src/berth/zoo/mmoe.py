"""MMoE: two tasks share experts, each with a gate of its own (Ma et al. 2018).

    embedding -> pooling -> concat -> norm -> experts -> gates -> towers -> predict -> loss

The tasks are a click and a conversion; labels are (batch, 2). The AUC of a run is that of clicks.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from berth.zoo import ctrdnn
from berth.zoo.ctrdnn import DENSE, SLOTS
from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import (
    ClickLogProbabilities,
    Concat,
    Lookup,
    Pool,
    State,
    clicks,
    dense,
    hidden_weight,
    nll,
)

TASKS = 2
EXPERTS = 4
EXPERT_WIDTH = 128
TOWER_WIDTH = 64


class Experts(nn.Module):
    """Runs all experts side by side, and keeps the input for the gates."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(dense(inputs, EXPERT_WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> State:
        """Return an entry `experts` of (batch, experts, width)."""
        return {"x": x, "experts": torch.stack([expert(x) for expert in self.experts], dim=1)}


class Gates(nn.Module):
    """Mixes the experts for each task, by weights that depend on the input."""

    def __init__(self, inputs: int, tasks: int) -> None:
        super().__init__()
        self.tasks = tasks
        self.gates = nn.Linear(inputs, tasks * EXPERTS)

    def forward(self, state: State) -> Tensor:
        """Return a tensor of shape (batch, tasks, width)."""
        shares = self.gates(state["x"]).unflatten(1, (self.tasks, EXPERTS)).softmax(dim=2)
        return torch.bmm(shares, state["experts"])


class PerTask(nn.Module):
    """Applies a layer of its own to each task."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tasks, inputs) -> (batch, tasks, outputs)."""
        return torch.stack([layer(part) for layer, part in zip(self.layers, x.unbind(1), strict=True)], dim=1)


def make_model(
    seed: int = 0,
    *,
    rows: int = 2**20,
    width: int = 16,
    slots: int = SLOTS,
    features: int = DENSE,
    tasks: int = TASKS,
) -> LayeredModel:
    """Return nine layers over one table of `rows` rows."""
    joined = slots * width + features
    with seeded(seed):
        chain = [
            Layer("embedding", "embedding", Lookup("slots", rows, width)),
            Layer("pooling", "pooling", Pool("slots")),
            Layer("concat", "concat", Concat()),
            Layer("norm", "norm", nn.LayerNorm(joined)),
            Layer("experts", "fully_connected", Experts(joined)),
            Layer("gates", "fully_connected", Gates(joined, tasks)),
            Layer(
                "towers", "fully_connected", PerTask([dense(EXPERT_WIDTH, TOWER_WIDTH) for _ in range(tasks)])
            ),
            Layer(
                "predict",
                "fully_connected",
                nn.Sequential(PerTask([nn.Linear(TOWER_WIDTH, 1) for _ in range(tasks)]), nn.Flatten(1)),
            ),
            Layer("loss", "loss", ClickLogProbabilities()),
        ]
    return LayeredModel(
        "mmoe",
        chain,
        partial(example_batch, slots=slots, features=features, tasks=tasks),
        task_nll,
        batch=4096,
        sample="impression",
    )


def task_nll(output: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the negative log-likelihood, summed over the tasks of an example."""
    tasks = labels.shape[1]
    repeated = None if weights is None else weights.repeat_interleave(tasks)
    return tasks * nll(output.flatten(0, 1), labels.flatten(), repeated)


def example_batch(
    batch: int, seed: int = 0, *, slots: int = SLOTS, features: int = DENSE, tasks: int = TASKS
) -> tuple[State, Tensor]:
    """Return slots and dense features, and labels of clicks and conversions.

    A conversion depends on half of the slots of a click, and on others in addition. So do further tasks.
    """
    state, clicked = ctrdnn.example_batch(batch, seed, slots=slots, features=features)
    ids = state["slots"].numpy()
    labels = [clicked]
    for task in range(1, tasks):
        logit = hidden_weight(ids[:, : slots // 2]).sum(axis=(1, 2)) + hidden_weight(~ids[:, 0, 0])
        labels.append(clicks(np.random.default_rng([seed, task]), logit - 1.0))
    return state, torch.stack(labels, dim=1)
