"""berth: the layer, its table and its learner, on 64-bit keys that are not folded."""

from __future__ import annotations

import torch
from turns import Array, Step, take_turns

from berth.train.data import Batch
from berth.train.learner import Learner
from berth.train.local import LocalStore
from click_model import WithRows


def make() -> Step:
    """Tables in the process."""
    torch.set_num_threads(1)
    learner = Learner(WithRows(), LocalStore())

    def step(keys: Array, dense: Array, labels: Array) -> Array:
        inputs = {"slots": torch.from_numpy(keys), "dense": torch.from_numpy(dense)}
        scores = learner.step(0, Batch(inputs, torch.from_numpy(labels), len(keys)))[1][0]
        assert scores is not None
        return scores

    return step


if __name__ == "__main__":
    take_turns(make, "keys")
