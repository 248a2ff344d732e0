"""The dense part that all torch peers share: an MLP with Adam, one thread."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from turns import DENSE, DIM, HIDDEN, SLOTS, Array, Step


def tower() -> nn.Sequential:
    """429-400-400-400-1, ReLU."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((SLOTS * DIM + DENSE, *HIDDEN)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))


def steps_over(rows_of: Callable[[Tensor], Tensor], *rules: torch.optim.Optimizer) -> Step:
    """A step of the MLP over rows of a batch's ids; `rules` are what else has to learn."""
    model = tower()
    learning = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), *rules]

    def step(ids: Array, dense: Array, labels: Array) -> Array:
        rows = rows_of(torch.from_numpy(ids)).view(len(ids), SLOTS * DIM)
        output = model(torch.cat([rows, torch.from_numpy(dense)], 1)).view(-1)
        wanted = torch.from_numpy(labels).to(output.dtype)
        nn.functional.binary_cross_entropy_with_logits(output, wanted).backward()
        for rule in learning:
            rule.step()
            rule.zero_grad(set_to_none=True)
        scores: Array = output.detach().numpy()
        return scores

    return step
