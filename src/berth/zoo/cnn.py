"""A residual network of eighteen convolutions for 32x32 images (after He et al. 2015, ResNet-18).

    stem -> block1a -> block1b -> .. -> block4b -> pooling -> head -> loss

It uses group instead of batch normalisation, so that splitting a batch over workers does not change the result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from berth.zoo.layered import Layer, LayeredModel, seeded
from berth.zoo.slots import nll

CLASSES = 10
SIDE = 32


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(8, outputs),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; a stride of two halves the sides."""
        return nn.functional.relu(self.inner(x) + self.short(x))


def make_model(seed: int = 0, *, width: int = 32) -> LayeredModel:
    """Return twelve layers; the channels grow from `width` to eight times that."""
    with seeded(seed):
        stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(8, width), nn.ReLU())
        chain, inputs = [Layer("stem", "convolution", stem)], width
        for level in range(4):
            outputs = width * 2**level
            first = Block(inputs, outputs, 1 if level == 0 else 2)
            chain.append(Layer(f"block{level + 1}a", "convolution", first))
            chain.append(Layer(f"block{level + 1}b", "convolution", Block(outputs, outputs, 1)))
            inputs = outputs
        chain += [
            Layer("pooling", "pooling", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())),
            Layer("head", "fully_connected", nn.Linear(inputs, CLASSES)),
            Layer("loss", "loss", nn.LogSoftmax(dim=1)),
        ]
    return LayeredModel("cnn", chain, example_batch, nll, batch=32, sample="32x32 image")


def example_batch(batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return noise over one of ten fixed patterns; the label is the pattern."""
    random = np.random.default_rng(seed)
    patterns = (
        np.random.default_rng(0).standard_normal((CLASSES, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    )
    labels = random.integers(0, CLASSES, batch)
    images = patterns[labels] + random.standard_normal((batch, 3, SIDE, SIDE))
    return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(labels)
