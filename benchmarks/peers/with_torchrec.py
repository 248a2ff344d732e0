"""torchrec: a fused collection of one table that all slots share."""

from __future__ import annotations

import torch
from dense import steps_over
from torch import Tensor
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from turns import DIM, ROWS, SLOTS, Step, take_turns


def make() -> Step:
    """Rows learn inside the backward pass."""
    names = [f"slot{number}" for number in range(SLOTS)]
    table = EmbeddingBagConfig(
        name="rows",
        embedding_dim=DIM,
        num_embeddings=ROWS,
        feature_names=names,
        init_fn=lambda weight: torch.nn.init.uniform_(weight, -0.01, 0.01),
    )
    rows = FusedEmbeddingBagCollection(
        [table], torch.optim.Adagrad, {"lr": 0.05, "eps": 1e-10}, device=torch.device("cpu")
    )

    def rows_of(ids: Tensor) -> Tensor:
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        found: Tensor = rows(KeyedJaggedTensor(names, ids.t().reshape(-1), lengths=lengths)).values()
        return found

    return steps_over(rows_of)


if __name__ == "__main__":
    take_turns(make)
