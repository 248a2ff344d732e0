"""DeepFM: a factorisation machine and a tower over the same rows (Guo et al. 2017).

    first_order, embedding -> first_order_sum, pooling -> machine -> concat -> fc1 -> fc2 -> predict -> loss

The logit is the sum of a weight for each id, of the dot products of every two slots, and of the tower.
"""

from __future__ import annotations

from torch import nn

from berth.zoo.ctrdnn import DENSE, SLOTS, examples
from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import (
    ClickLogProbabilities,
    JoinTower,
    LinearPart,
    Lookup,
    Pool,
    State,
    SumLogits,
    nll,
    tower,
)

TOWER = (256, 128)


class FactorisationMachine(nn.Module):
    """Adds the dot products of every two slots to the linear part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, state: State) -> State:
        """Return the state with the sum; that of all pairs is ((sum of v)^2 - sum of v^2) / 2."""
        vectors = state["slots"].unflatten(1, (-1, self.width))
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2
        return {**state, "linear": state["linear"] + pairs}


def make_model(
    seed: int = 0, *, rows: int = 2**20, width: int = 16, slots: int = SLOTS, features: int = DENSE
) -> LayeredModel:
    """Return ten layers over a table of weights and one of vectors, each of `rows` rows."""
    sizes = [slots * width + features, *TOWER]
    with seeded(seed):
        chain = [
            Layer("first_order", "embedding", Lookup("slots", rows, 1, out="linear", std=0.01)),
            Layer("embedding", "embedding", Lookup("slots", rows, width, std=0.05)),
            Layer("first_order_sum", "pooling", LinearPart("linear", features)),
            Layer("pooling", "pooling", Pool("slots")),
            Layer("machine", "match", FactorisationMachine(width)),
            Layer("concat", "concat", JoinTower("linear")),
            *tower("fc", sizes, "deep"),
            Layer("predict", "fully_connected", SumLogits("linear", sizes[-1])),
            Layer("loss", "loss", ClickLogProbabilities()),
        ]
    return LayeredModel("deepfm", chain, examples(slots, features), nll, batch=4096, sample="impression")
