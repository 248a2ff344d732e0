"""FBGEMM's table-batched embedding, which torchrec is built on, by itself."""

from __future__ import annotations

import torch
from dense import steps_over
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor
from turns import DIM, ROWS, SLOTS, Step, take_turns


def make() -> Step:
    """Rows learn inside the backward pass."""
    rows = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        feature_table_map=[0] * SLOTS,
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=0.05,
        eps=1e-10,
        pooling_mode=PoolingMode.SUM,
    )
    rows.init_embedding_weights_uniform(-0.01, 0.01)

    def rows_of(ids: Tensor) -> Tensor:
        found: Tensor = rows(ids.t().reshape(-1), torch.arange(ids.numel() + 1))
        return found

    return steps_over(rows_of)


if __name__ == "__main__":
    take_turns(make)
