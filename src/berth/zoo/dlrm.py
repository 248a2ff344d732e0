"""DLRM: dot products of every two slots, and of slots with the dense features (Naumov et al. 2019).

embedding -> pooling -> bottom1 .. bottom3 -> interaction -> top1 -> top2 -> predict -> loss
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from berth.zoo.ctrdnn import DENSE, SLOTS, examples
from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import ClickLogProbabilities, Lookup, Pool, State, nll, tower

BOTTOM = (256, 64)  # then the width of a row
TOP = (256, 128)


class Interaction(nn.Module):
    """Dot products of all pairs of vectors: those of the slots, and that of the dense features."""

    pairs: Tensor

    def __init__(self, vectors: int, width: int) -> None:
        super().__init__()
        self.width = width
        left, right = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", left * vectors + right, persistent=False)

    def forward(self, state: State) -> Tensor:
        """Return a tensor of shape (batch, width + pairs)."""
        vectors = torch.cat([state["dense"][:, None], state["slots"].unflatten(1, (-1, self.width))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.cat([state["dense"], products.index_select(1, self.pairs)], dim=1)


def make_model(
    seed: int = 0, *, rows: int = 2**20, width: int = 16, slots: int = SLOTS, features: int = DENSE
) -> LayeredModel:
    """Return ten layers over one table of `rows` rows."""
    bottom = [features, *BOTTOM, width]
    top = [width + (slots + 1) * slots // 2, *TOP]
    with seeded(seed):
        chain = [
            Layer("embedding", "embedding", Lookup("slots", rows, width)),
            Layer("pooling", "pooling", Pool("slots")),
            *tower("bottom", bottom, "dense"),
            Layer("interaction", "match", Interaction(slots + 1, width)),
            *tower("top", top),
            Layer("predict", "fully_connected", nn.Sequential(nn.Linear(top[-1], 1), nn.Flatten(0))),
            Layer("loss", "loss", ClickLogProbabilities()),
        ]
    return LayeredModel("dlrm", chain, examples(slots, features), nll, batch=4096, sample="impression")
