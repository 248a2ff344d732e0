"""Plain torch: EmbeddingBag with sparse gradients, and Adagrad."""

from __future__ import annotations

import torch
from dense import steps_over
from torch import Tensor, nn
from turns import DIM, ROWS, Step, take_turns


def make() -> Step:
    """One bag for each id."""
    torch.sparse.check_sparse_tensor_invariants.disable()
    bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    nn.init.uniform_(bag.weight, -0.01, 0.01)

    def rows_of(ids: Tensor) -> Tensor:
        rows: Tensor = bag(ids.view(-1), torch.arange(ids.numel()))
        return rows

    return steps_over(rows_of, torch.optim.Adagrad(bag.parameters(), lr=0.05))


if __name__ == "__main__":
    take_turns(make)
