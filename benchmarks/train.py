"""Training beside what else a user could pick, and beside the dense part alone (`python benchmarks/train.py`).

Work: 26 slots with one id each (Zipf 1.1, vocabularies of 10 to a million), 13 dense features, rows of 16, an MLP
429-400-400-400-1, dense Adam 0.001, sparse AdaGrad 0.05. Everybody gets the same examples in the same turns of one
run; the figure is CPU milliseconds per 1,000 examples over all threads, the median of the turns, the spread the
distance between the quartiles. AUC is progressive, over the last quarter of the examples.

The floor is the MLP on inputs that stand ready. `with input gradient` it also works out what whoever holds the
rows must be told; without, it could not be part of any model with an embedding.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from torch import Tensor, nn

from berth.train.data import Batch, ClickStream, Share
from berth.train.embedding import Embedding
from berth.train.learner import Learner, click_loss
from berth.train.local import LocalStore
from berth.train.metrics import auc
from berth.train.tables import Initialiser, adagrad

SLOTS, DENSE, DIM, HIDDEN, ROWS = 26, 13, 16, 400, 1_000_000
EXAMPLES = 262_144
TURNS = 16

Step = Callable[[int, Batch], Tensor]


def tower() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [SLOTS * DIM + DENSE, HIDDEN, HIDDEN, HIDDEN]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, 1))


def dense_step(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def floor(gradient: bool) -> Step:
    """The MLP on fixed inputs."""
    model = tower()
    rule = dense_step(model)
    inputs: dict[int, Tensor] = {}

    def step(number: int, batch: Batch) -> Tensor:
        x = inputs.setdefault(batch.examples, torch.randn(batch.examples, SLOTS * DIM + DENSE))
        x.requires_grad_(gradient)
        output: Tensor = model(x)
        click_loss(output, batch.labels).backward()
        rule.step()
        rule.zero_grad(set_to_none=True)
        x.grad = None
        return output.detach()

    return step


class WithBag(nn.Module):
    """Ids are folded onto a table of fixed size, as torch needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
        nn.init.uniform_(self.bag.weight, -0.01, 0.01)
        self.tower = tower()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        keys = inputs["slots"].flatten()
        rows = self.bag((keys * 0x9E3779B1 >> 8) % ROWS, torch.arange(len(keys)))
        joined = torch.cat([rows.view(-1, SLOTS * DIM), inputs["dense"]], 1)
        output: Tensor = self.tower(joined)
        return output


class WithRows(nn.Module):
    """The same over a sparse table of berth's."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Embedding(DIM, optimiser=adagrad(0.05), initialiser=Initialiser("uniform", 0.01))
        self.tower = tower()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        joined = torch.cat([self.rows(inputs["slots"]).flatten(1), inputs["dense"]], 1)
        output: Tensor = self.tower(joined)
        return output


def plain_torch() -> Step:
    model = WithBag()
    rules = [
        torch.optim.Adagrad(model.bag.parameters(), lr=0.05),
        dense_step(model.tower),
    ]

    def step(number: int, batch: Batch) -> Tensor:
        output: Tensor = model(batch.inputs)
        click_loss(output, batch.labels).backward()
        for rule in rules:
            rule.step()
            rule.zero_grad(set_to_none=True)
        return output.detach()

    return step


def berth() -> Step:
    learner = Learner(WithRows(), LocalStore())

    def step(number: int, batch: Batch) -> Tensor:
        _, (scores, _) = learner.step(number, batch)
        assert scores is not None
        return torch.from_numpy(scores)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 512])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"best possible AUC {ClickStream().best_auc():.4f}")
    for batch in options.batches:
        compare(batch, options.examples)


def compare(size: int, examples: int) -> None:
    systems: dict[str, Step] = {
        "MLP floor": floor(False),
        "MLP floor, with input gradient": floor(True),
        "torch EmbeddingBag + Adagrad": plain_torch(),
        "berth, one process": berth(),
    }
    scores: dict[str, list[Tensor]] = {name: [] for name in systems}
    costs: dict[str, list[float]] = {name: [] for name in ["reading", *systems]}
    labels: list[Tensor] = []
    stream = ClickStream().batches(size, 0, Share(), 0)
    steps = examples // size // TURNS
    for turn in range(TURNS):
        began = time.process_time()
        batches = [next(stream) for _ in range(steps)]
        costs["reading"].append((time.process_time() - began) * 1e6 / steps / size)
        labels += [batch.labels for batch in batches]
        for name, step in systems.items():
            began = time.process_time()
            for number, batch in enumerate(batches):
                scores[name].append(step(turn * steps + number, batch).reshape(-1))
            costs[name].append((time.process_time() - began) * 1e6 / steps / size)
    show(size, costs, scores, labels)


def show(
    size: int, costs: dict[str, list[float]], scores: dict[str, list[Tensor]], labels: list[Tensor]
) -> None:
    print(f"\nbatch {size}: CPU ms per 1,000 examples   ± quartiles    x floor  x with gradient    AUC")
    middle = {name: statistics.median(cost[1:]) for name, cost in costs.items()}
    known = torch.cat(labels).numpy()
    last = len(known) // 4
    for name, cost in costs.items():
        low, _, high = statistics.quantiles(cost[1:], n=4)
        ratios = [middle[name] / middle[base] for base in ("MLP floor", "MLP floor, with input gradient")]
        found = ""
        if name in scores and "MLP" not in name:
            found = f"{auc(torch.cat(scores[name]).numpy()[-last:], known[-last:]):.4f}"
        print(
            f"  {name:32} {middle[name]:10.2f} {high - low:16.2f} {ratios[0]:10.3f} {ratios[1]:12.3f} {found:>12}",
            flush=True,
        )


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
