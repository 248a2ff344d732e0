"""2EMB: two embedding tables under one shallow tower; it mostly moves rows.

user_embedding, item_embedding -> user_pooling, item_pooling -> concat -> norm -> fc1 -> fc2 -> predict -> loss
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import Concat, Lookup, Pool, State, clicks, hidden_weight, nll, slot_ids, tower

SLOTS = {"user": 20, "item": 20}
IDS_PER_SLOT = 5


def make_model(seed: int = 0, *, rows: int = 2**20, width: int = 16) -> LayeredModel:
    """Return ten layers over two tables."""
    joined = sum(SLOTS.values()) * width
    with seeded(seed):
        chain = [Layer(f"{side}_embedding", "embedding", Lookup(side, rows, width)) for side in SLOTS]
        chain += [Layer(f"{side}_pooling", "pooling", Pool(side)) for side in SLOTS]
        chain += [
            Layer("concat", "concat", Concat()),
            Layer("norm", "norm", nn.LayerNorm(joined)),
            *tower("fc", (joined, 256, 64)),
            Layer("predict", "fully_connected", nn.Linear(64, 2)),
            Layer("loss", "loss", nn.LogSoftmax(dim=1)),
        ]
    return LayeredModel("2emb", chain, example_batch, nll, batch=4096, sample="user and item")


def example_batch(batch: int, seed: int = 0) -> tuple[State, Tensor]:
    """Return slots of a user and an item, and click labels that depend on the first two slots of each."""
    random = np.random.default_rng(seed)
    user = slot_ids(random, batch, SLOTS["user"], IDS_PER_SLOT)
    item = slot_ids(random, batch, SLOTS["item"], IDS_PER_SLOT, first=100)
    logit = sum(2 * hidden_weight(ids[:, :2]).sum(axis=(1, 2)) for ids in (user, item))
    state = {"user": torch.from_numpy(user), "item": torch.from_numpy(item)}
    return state, clicks(random, np.asarray(logit))
