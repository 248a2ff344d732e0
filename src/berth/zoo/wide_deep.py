"""Wide & Deep: a linear model of ids and crossed ids beside a tower over embeddings (Cheng et al. 2016).

    crosses -> wide, embedding -> wide_sum, pooling -> concat -> fc1 -> fc2 -> predict -> loss

A crossed id is the pair of ids of two slots: the linear model has a weight for each pair that occurs.
"""

from __future__ import annotations

import torch
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
CROSSED = 8  # the first slots; each is crossed with the next one
_SPREAD = (-0x61C8864680B583EB, 0x2545F4914F6CDD1D)  # odd 64-bit factors that mix the bits of ids


class Crosses(nn.Module):
    """Makes the ids of the wide part: those of all slots, and one for the pair of two neighbouring slots.

    Where slots have several ids, the first of one is paired with the first of the other, and so on.
    """

    def forward(self, state: State) -> State:
        """(batch, slots, ids) -> an entry `wide` of (batch, slots + CROSSED, ids)."""
        ids = state["slots"]
        first = ids[:, : min(CROSSED, ids.shape[1] - 1)]
        mixed = (first * _SPREAD[0]) ^ (first >> 29)
        crossed = (mixed + ids[:, 1 : CROSSED + 1]) * _SPREAD[1]
        return {**state, "wide": torch.cat([ids, crossed ^ (crossed >> 32)], dim=1)}


def make_model(
    seed: int = 0, *, rows: int = 2**20, width: int = 16, slots: int = SLOTS, features: int = DENSE
) -> LayeredModel:
    """Return ten layers over a table of weights and one of vectors, each of `rows` rows."""
    sizes = [slots * width + features, *TOWER]
    with seeded(seed):
        chain = [
            Layer("crosses", "concat", Crosses()),
            Layer("wide", "embedding", Lookup("wide", rows, 1, std=0.01)),
            Layer("embedding", "embedding", Lookup("slots", rows, width)),
            Layer("wide_sum", "pooling", LinearPart("wide", features)),
            Layer("pooling", "pooling", Pool("slots")),
            Layer("concat", "concat", JoinTower("wide")),
            *tower("fc", sizes, "deep"),
            Layer("predict", "fully_connected", SumLogits("wide", sizes[-1])),
            Layer("loss", "loss", ClickLogProbabilities()),
        ]
    return LayeredModel("wide-deep", chain, examples(slots, features), nll, batch=4096, sample="impression")
