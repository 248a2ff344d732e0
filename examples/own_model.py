"""A model of one's own that can be profiled, planned and trained: docs/guides/own-model.md walks through it."""

import torch
from torch import nn

import berth.train as bt


class Rows(nn.Module):
    """Rows of sixteen numbers for every id, side by side with the dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = bt.Embedding(16, optimiser=bt.adagrad(0.05))

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """(batch, 26, 1) keys and (batch, 13) numbers become (batch, 429)."""
        return torch.cat([self.rows(inputs["slots"]).flatten(1), inputs["dense"]], dim=1)


def make_model() -> nn.Sequential:
    """A chain: berth can cut it between any two of its layers."""
    return nn.Sequential(
        Rows(), nn.Linear(429, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)
    )


def example_batch(batch: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What one batch looks like; `berth profile` sends it through the layers."""
    keys, dense, _, clicks = bt.ClickStream(seed).draw(0, batch)
    inputs = {"slots": torch.from_numpy(keys)[:, :, None], "dense": torch.from_numpy(dense)}
    return inputs, torch.from_numpy(clicks)
