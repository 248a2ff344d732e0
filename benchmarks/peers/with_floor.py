"""The MLP alone with the gradient of its input: what no model with an embedding can do without."""

from __future__ import annotations

import torch
from dense import steps_over
from torch import Tensor
from turns import DIM, SLOTS, Step, take_turns


def make() -> Step:
    """Rows are prepared in advance, and their gradients are dropped."""
    ready: dict[int, Tensor] = {}

    def rows_of(ids: Tensor) -> Tensor:
        rows = ready.setdefault(len(ids), torch.randn(len(ids), SLOTS, DIM))
        rows.grad = None
        return rows.requires_grad_()

    return steps_over(rows_of)


if __name__ == "__main__":
    take_turns(make)
