"""The model of all benchmarks of training: an MLP 429-400-400-400-1 over 26 rows of 16 and 13 dense features.

It is self-contained, so that `berth train benchmarks/click_model.py:make_model` trains it too.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from berth.train.embedding import Embedding
from berth.train.tables import Initialiser, adagrad

SLOTS, DENSE, DIM, HIDDEN = 26, 13, 16, 400


def tower() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [SLOTS * DIM + DENSE, HIDDEN, HIDDEN, HIDDEN]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, 1))


class WithRows(nn.Module):
    """The MLP over a sparse table of berth's."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Embedding(DIM, optimiser=adagrad(0.05), initialiser=Initialiser("uniform", 0.01))
        self.tower = tower()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        joined = torch.cat([self.rows(inputs["slots"]).flatten(1), inputs["dense"]], 1)
        output: Tensor = self.tower(joined)
        return output


def make_model() -> WithRows:
    return WithRows()
