"""Building blocks over hashed slots: embedding look-ups, pooling, and learnable synthetic clicks.

An id is the 63-bit hash of (slot, value), as in click logs; a table maps it to a row by modulo. Values are drawn
log-uniformly, so a few are frequent and most are rare. The click probability of an example follows from a hidden weight
of each id (again a hash) and of each dense feature: the rule is the same for every seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from berth.zoo.layered import Layer

State = dict[str, Tensor]
IdArray = NDArray[np.int64]
_VALUES = 200_000  # distinct values of a slot


class Lookup(nn.Module):
    """Looks up the ids of one entry of the state: (batch, ...) gains a last dimension.

    Rows replace the ids, or go to the entry `out`, so that another table can look up the same ids.
    """

    def __init__(
        self, key: str, rows: int, width: int, *, out: str | None = None, std: float | None = None
    ) -> None:
        super().__init__()
        self.key, self.out = key, out or key
        self.table = nn.Embedding(rows, width, sparse=True)
        nn.init.normal_(self.table.weight, std=width**-0.5 if std is None else std)

    def forward(self, state: State) -> State:
        """Map the ids to rows and gather them."""
        return {**state, self.out: self.table(state[self.key] % self.table.num_embeddings)}


class Pool(nn.Module):
    """Sums the vectors of each slot and concatenates the slots."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def forward(self, state: State) -> State:
        """(batch, slots, ids, width) -> (batch, slots * width)."""
        return {**state, self.key: state[self.key].sum(dim=2).flatten(1)}


class Concat(nn.Module):
    """Joins the entries of the state into one tensor."""

    def forward(self, state: State) -> Tensor:
        """Concatenate in the order of the keys."""
        return torch.cat(list(state.values()), dim=1)


class ClickLogProbabilities(nn.Module):
    """Log-probabilities of no click and of a click, from the logit of a click."""

    def forward(self, logit: Tensor) -> Tensor:
        """(...) -> (..., 2)."""
        return nn.functional.logsigmoid(torch.stack([-logit, logit], dim=-1))


class On(nn.Module):
    """Applies a layer to one entry of the state and keeps the others."""

    def __init__(self, key: str, layer: nn.Module) -> None:
        super().__init__()
        self.key = key
        self.layer = layer

    def forward(self, state: State) -> State:
        """Return the state with that entry replaced."""
        return {**state, self.key: self.layer(state[self.key])}


class LinearPart(nn.Module):
    """Sums the weights of an example's ids and a linear map of its dense features."""

    def __init__(self, key: str, features: int) -> None:
        super().__init__()
        self.key = key
        self.dense = nn.Linear(features, 1)

    def forward(self, state: State) -> State:
        """(batch, slots, ids, 1) -> (batch,)."""
        logit = state[self.key].sum(dim=(1, 2)) + self.dense(state["dense"])
        return {**state, self.key: logit.squeeze(1)}


class JoinTower(nn.Module):
    """Joins slots and dense features as the input of the tower, and keeps the linear part."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key

    def forward(self, state: State) -> State:
        """Return the linear part, and an entry `deep` of (batch, slots * width + features)."""
        return {self.key: state[self.key], "deep": torch.cat([state["slots"], state["dense"]], dim=1)}


class SumLogits(nn.Module):
    """Adds the logit of the tower to that of the linear part."""

    def __init__(self, key: str, width: int) -> None:
        super().__init__()
        self.key = key
        self.predict = nn.Linear(width, 1)

    def forward(self, state: State) -> Tensor:
        """Return a tensor of shape (batch,)."""
        logit: Tensor = state[self.key] + self.predict(state["deep"]).squeeze(1)
        return logit


def dense(inputs: int, outputs: int) -> nn.Sequential:
    """Return a fully connected layer with ReLU and He initialisation (He 2015)."""
    linear = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
    nn.init.zeros_(linear.bias)
    return nn.Sequential(linear, nn.ReLU())


def tower(name: str, sizes: Sequence[int], key: str | None = None) -> list[Layer]:
    """Return fully connected layers name1, name2 .. from each size to the next, on one entry of the state if `key`."""
    layers = [dense(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    return [
        Layer(f"{name}{number}", "fully_connected", layer if key is None else On(key, layer))
        for number, layer in enumerate(layers, 1)
    ]


def hashed(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the splitmix64 hash of every value."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def slot_ids(random: np.random.Generator, batch: int, slots: int, per_slot: int, first: int = 0) -> IdArray:
    """Return ids of shape (batch, slots, per_slot); slot numbers start at `first`."""
    values = (_VALUES ** random.random((batch, slots, per_slot))).astype(np.int64)
    slot = np.arange(first, first + slots, dtype=np.int64)[None, :, None]
    return (hashed(values + (slot << 32)) >> np.uint64(1)).astype(np.int64)


def hidden_weight(ids: IdArray) -> NDArray[np.float64]:
    """Return the fixed contribution of an id to a click, from -1 to 1."""
    return (hashed(ids) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def clicks(random: np.random.Generator, logit: NDArray[np.float64]) -> Tensor:
    """Draw labels with the probabilities of the logits."""
    return torch.from_numpy((random.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(np.int64))


def nll(output: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the negative log-likelihood; the last layer of the chain returns log-probabilities.

    With weights it is their product with that of each example, over the number of examples.
    """
    if weights is None:
        return nn.functional.nll_loss(output, labels)
    losses = nn.functional.nll_loss(output, labels, reduction="none")
    return (losses * weights).mean()
