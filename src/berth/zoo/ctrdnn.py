"""CTRDNN: the click-through rate of an advertisement from hashed slots and a few dense features.

    embedding -> pooling -> concat -> norm -> fc1 .. fcN -> predict -> loss

All slots share one table. The depth is the number of layers in the chain, of which six are outside the tower. The
widths fall from 512 to 128.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from berth.zoo.layered import Example, Layer, LayeredModel, seeded
from berth.zoo.slots import Concat, Lookup, Pool, State, clicks, hidden_weight, nll, slot_ids, tower

SLOTS = 26
DENSE = 13
IDS_PER_SLOT = 3
WIDTHS = (512, 256, 128)


def make_model(
    seed: int = 0,
    *,
    layers: int = 16,
    rows: int = 2**20,
    width: int = 16,
    slots: int = SLOTS,
    features: int = DENSE,
) -> LayeredModel:
    """Return a chain of `layers` layers over one table of `rows` rows."""
    steps = layers - 6
    with seeded(seed):
        sizes = [slots * width + features, *(WIDTHS[step * len(WIDTHS) // steps] for step in range(steps))]
        chain = [
            Layer("embedding", "embedding", Lookup("slots", rows, width)),
            Layer("pooling", "pooling", Pool("slots")),
            Layer("concat", "concat", Concat()),
            Layer("norm", "norm", nn.LayerNorm(sizes[0])),
            *tower("fc", sizes),
            Layer("predict", "fully_connected", nn.Linear(sizes[-1], 2)),
            Layer("loss", "loss", nn.LogSoftmax(dim=1)),
        ]
    return LayeredModel("ctrdnn", chain, examples(slots, features), nll, batch=4096, sample="impression")


def examples(slots: int = SLOTS, features: int = DENSE) -> Example:
    """Return a function that draws examples with these numbers of slots and dense features."""
    return partial(example_batch, slots=slots, features=features)


def example_batch(
    batch: int, seed: int = 0, *, slots: int = SLOTS, features: int = DENSE
) -> tuple[State, Tensor]:
    """Return slots and dense features, and click labels."""
    random = np.random.default_rng(seed)
    ids = slot_ids(random, batch, slots, IDS_PER_SLOT)
    numbers = random.standard_normal((batch, features))
    logit = hidden_weight(ids).sum(axis=(1, 2)) / 2 + numbers @ np.linspace(-1, 1, features)
    state = {"slots": torch.from_numpy(ids), "dense": torch.from_numpy(numbers.astype(np.float32))}
    return state, clicks(random, logit)
