"""A model of one's own for `berth profile`: an nn.Sequential, and a function that draws a batch for it.

berth profile models/recommender.py:make_model --batch 256
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH = 256
SAMPLE = "visit"


def make_model() -> nn.Sequential:
    """A table of a hundred thousand pages under a small tower; `sparse` lets servers keep the table."""
    return nn.Sequential(
        nn.EmbeddingBag(100_000, 32, mode="mean", sparse=True),
        nn.Linear(32, 64),
        nn.ReLU(),
        nn.Linear(64, 2),
    )


def example_batch(batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten pages of a visit, and whether it ended in an order."""
    random = torch.Generator().manual_seed(seed)
    pages = torch.randint(0, 100_000, (batch, 10), generator=random)
    return pages, torch.randint(0, 2, (batch,), generator=random)
