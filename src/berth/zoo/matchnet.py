"""MATCHNET: matches items to users, with a tower for each.

    user_embedding, item_embedding -> user_pooling, item_pooling -> user_fc1, item_fc1 .. user_fc3, item_fc3
    -> user_norm, item_norm -> match -> match_fc -> predict -> loss

The chain carries both sides; a layer of one side passes the other through.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import Lookup, On, Pool, State, clicks, dense, hidden_weight, nll, slot_ids

SLOTS = {"user": 16, "item": 10}
IDS_PER_SLOT = {"user": 4, "item": 2}
TOWER = (512, 256, 128)


class Match(nn.Module):
    """Concatenates products and distances of the two vectors."""

    def forward(self, state: State) -> Tensor:
        """Return a tensor of shape (batch, 2 * width)."""
        user, item = state["user"], state["item"]
        return torch.cat([user * item, (user - item).abs()], dim=1)


def make_model(seed: int = 0, *, rows: int = 2**19, width: int = 16) -> LayeredModel:
    """Return sixteen layers over a table of user slots and one of item slots."""
    with seeded(seed):
        chain = [Layer(f"{side}_embedding", "embedding", Lookup(side, rows, width)) for side in SLOTS]
        chain += [Layer(f"{side}_pooling", "pooling", Pool(side)) for side in SLOTS]
        sizes = {side: [slots * width, *TOWER] for side, slots in SLOTS.items()}
        chain += [
            Layer(f"{side}_fc{number + 1}", "fully_connected", On(side, dense(*sizes[side][number:][:2])))
            for number in range(len(TOWER))
            for side in SLOTS
        ]
        chain += [Layer(f"{side}_norm", "norm", On(side, nn.LayerNorm(TOWER[-1]))) for side in SLOTS]
        chain += [
            Layer("match", "match", Match()),
            Layer("match_fc", "fully_connected", dense(2 * TOWER[-1], 128)),
            Layer("predict", "fully_connected", nn.Linear(128, 2)),
            Layer("loss", "loss", nn.LogSoftmax(dim=1)),
        ]
    return LayeredModel("matchnet", chain, example_batch, nll, batch=4096, sample="user and item")


def example_batch(batch: int, seed: int = 0) -> tuple[State, Tensor]:
    """Return slots of a user and an item, and labels that depend on the first slots of both."""
    random = np.random.default_rng(seed)
    user = slot_ids(random, batch, SLOTS["user"], IDS_PER_SLOT["user"])
    item = slot_ids(random, batch, SLOTS["item"], IDS_PER_SLOT["item"], first=100)
    taste, style = (2 * hidden_weight(ids[:, :2]).sum(axis=(1, 2)) for ids in (user, item))
    together = 2 * hidden_weight(user[:, 0, 0]) * hidden_weight(item[:, 0, 0])
    state = {"user": torch.from_numpy(user), "item": torch.from_numpy(item)}
    return state, clicks(random, taste + style + together)
