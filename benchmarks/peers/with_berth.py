"""berth: the layer, its table and its learner, on 64-bit keys that are not folded."""

from __future__ import annotations

import torch
from dense import tower
from torch import Tensor, nn
from turns import DIM, Array, Step, take_turns

from berth.train.data import Batch
from berth.train.embedding import Embedding
from berth.train.learner import Learner
from berth.train.local import LocalStore
from berth.train.tables import Initialiser, adagrad


class Model(nn.Module):
    """The same MLP over rows of a sparse table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Embedding(DIM, optimiser=adagrad(0.05), initialiser=Initialiser("uniform", 0.01))
        self.tower = tower()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """A logit for each example."""
        joined = torch.cat([self.rows(inputs["slots"]).flatten(1), inputs["dense"]], 1)
        output: Tensor = self.tower(joined)
        return output


def make() -> Step:
    """Tables in the process."""
    learner = Learner(Model(), LocalStore())

    def step(keys: Array, dense: Array, labels: Array) -> Array:
        inputs = {"slots": torch.from_numpy(keys), "dense": torch.from_numpy(dense)}
        scores = learner.step(0, Batch(inputs, torch.from_numpy(labels), len(keys)))[1][0]
        assert scores is not None
        return scores

    return step


if __name__ == "__main__":
    take_turns(make, "keys")
