"""NCE: word vectors over a large vocabulary, trained to distinguish true words from noise (Gutmann and Hyvärinen 2010).

    context_embedding -> pooling -> projection -> candidate_embedding -> loss

The candidates of an example are its true word and a few drawn from the noise distribution; the last layer returns
their log-odds against the noise, and the loss is binary cross-entropy.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import Lookup, State, hashed

WORDS = 400_000
CONTEXT = 8
NOISE = 16
_TOPIC = 50  # words are used with others of their topic


class MeanContext(nn.Module):
    """Averages the vectors of the context."""

    def forward(self, state: State) -> State:
        """(batch, context, width) -> (batch, width)."""
        return {**state, "context": state["context"].mean(dim=1)}


class Project(nn.Module):
    """Applies a linear map to the pooled context."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, state: State) -> State:
        """Return the state with the context mapped."""
        return {**state, "context": self.linear(state["context"])}


class LogOdds(nn.Module):
    """Log-odds of the candidates against `NOISE` draws; scores are relative to a word's noise probability."""

    def forward(self, state: State) -> Tensor:
        """(batch, candidates): log(p / (NOISE * q)), the score being log(p / q)."""
        scores = torch.einsum("bw,bcw->bc", state["context"], state["candidates"])
        return scores - math.log(NOISE)


def make_model(seed: int = 0, *, rows: int = 2**19, width: int = 64) -> LayeredModel:
    """Return five layers over a table of contexts and one of candidates."""
    with seeded(seed):
        chain = [
            Layer("context_embedding", "embedding", Lookup("context", rows, width)),
            Layer("pooling", "pooling", MeanContext()),
            Layer("projection", "fully_connected", Project(width)),
            Layer("candidate_embedding", "embedding", Lookup("candidates", rows, width)),
            Layer("loss", "loss", LogOdds()),
        ]
    return LayeredModel("nce", chain, example_batch, two_way_loss, batch=4096, sample="word in context")


def two_way_loss(log_odds: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy, summed over the candidates of an example."""
    losses = nn.functional.binary_cross_entropy_with_logits(log_odds, labels, reduction="sum")
    return losses / len(labels)


def example_batch(batch: int, seed: int = 0) -> tuple[State, Tensor]:
    """Return contexts and candidates, the true word first; labels are 1, 0, 0 ..."""
    random = np.random.default_rng(seed)
    topic = random.integers(0, _TOPIC, batch)
    context = _word_of(topic[:, None], random.random((batch, CONTEXT)))
    true = _word_of(topic, random.random(batch))
    noise = _word_of(random.integers(0, _TOPIC, (batch, NOISE)), random.random((batch, NOISE)))
    candidates = np.concatenate([true[:, None], noise], axis=1)
    labels = np.zeros((batch, NOISE + 1), dtype=np.float32)
    labels[:, 0] = 1
    state = {
        "context": torch.from_numpy(_ids(context)),
        "candidates": torch.from_numpy(_ids(candidates)),
    }
    return state, torch.from_numpy(labels)


def _word_of(topic: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw words log-uniformly within a topic; words are numbered by frequency, alternating topics."""
    return ((WORDS / _TOPIC) ** share).astype(np.int64) * _TOPIC + topic - _TOPIC


def _ids(words: NDArray[np.int64]) -> NDArray[np.int64]:
    return (hashed(words) >> np.uint64(1)).astype(np.int64)
