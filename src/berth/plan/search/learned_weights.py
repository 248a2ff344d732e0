"""The shipped policy weights, pretrained on other problems: a few thousand numbers in half precision."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from berth.plan.search.learned_policy import Cell, Policy

_FOLDER = "data"


def load(policy: Policy, cell: Cell) -> None:
    """Load the shipped weights into a policy."""
    import torch

    file = resources.files("berth.plan.search").joinpath(f"{_FOLDER}/berth-{cell}.npz")
    with file.open("rb") as stream, np.load(stream) as arrays:
        weights = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in arrays.files}
    policy.load_state_dict(weights)


def save(policy: Policy, path: Path) -> None:
    """Write a policy's weights in the shipped format."""
    arrays = {name: weights.numpy().astype(np.float16) for name, weights in policy.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
