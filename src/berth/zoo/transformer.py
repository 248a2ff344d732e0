"""A small GPT: five blocks of attention and feed-forward over 64 tokens.

    embedding -> attention1 -> feed_forward1 -> .. -> feed_forward5 -> norm -> head -> loss

Its vocabulary is small and most tokens occur in every batch, so the table is a dense parameter like the others.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from berth.zoo.layered import Layer, LayeredModel, seeded

VOCABULARY = 4096
TOKENS = 64


class TokenAndPlace(nn.Module):
    """Adds token and position embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.randn(TOKENS, width) * 0.02)
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) -> (batch, tokens, width)."""
        embedded: Tensor = self.token(tokens)
        return embedded + self.place


class Attention(nn.Module):
    """Pre-norm causal self-attention with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        batch, tokens, width = x.shape
        parts = self.mixed(self.norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        added: Tensor = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return added


class FeedForward(nn.Module):
    """Pre-norm feed-forward block with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        added: Tensor = x + self.inner(x)
        return added


def make_model(seed: int = 0, *, blocks: int = 5, width: int = 256, heads: int = 4) -> LayeredModel:
    """Return a chain of 2 * blocks + 4 layers."""
    with seeded(seed):
        chain = [Layer("embedding", "embedding", TokenAndPlace(width))]
        for block in range(1, blocks + 1):
            chain.append(Layer(f"attention{block}", "attention", Attention(width, heads)))
            chain.append(Layer(f"feed_forward{block}", "fully_connected", FeedForward(width)))
        chain += [
            Layer("norm", "norm", nn.LayerNorm(width)),
            Layer("head", "fully_connected", nn.Linear(width, VOCABULARY)),
            Layer("loss", "loss", nn.LogSoftmax(dim=-1)),
        ]
    return LayeredModel("transformer", chain, example_batch, token_nll, batch=32, sample="64 tokens")


def token_nll(output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over all tokens."""
    return nn.functional.nll_loss(output.flatten(0, 1), labels.flatten())


def example_batch(batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return sequences in which a token mostly follows from the previous one; labels are the next tokens."""
    random = np.random.default_rng(seed)
    tokens = np.empty((batch, TOKENS + 1), dtype=np.int64)
    tokens[:, 0] = random.integers(0, 64, batch)
    for place in range(TOKENS):
        tokens[:, place + 1] = (tokens[:, place] * 5 + 3) % 64
    surprise = random.random(tokens.shape) < 0.05
    tokens[surprise] = random.integers(0, VOCABULARY, surprise.sum())
    return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(tokens[:, 1:].copy())
