"""A slip on purpose: the second layer does not take what the first returns."""

from __future__ import annotations

from torch import nn


def make_model() -> nn.Sequential:
    """Sixteen values out, thirty-two in."""
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(32, 2))
