"""Training beside what else a user could pick, and beside the dense part alone (`python benchmarks/train.py`).

Work: 26 slots with one id each (Zipf 1.1, vocabularies of 10 to a million), 13 dense features, rows of 16, an MLP
429-400-400-400-1, dense Adam 0.001, sparse AdaGrad 0.05. Everybody gets the same examples in the same turns of one
run; the figure is CPU milliseconds per 1,000 examples over all threads, the median of the turns, the spread the
distance between the quartiles. Beside the floor it is the median of the ratios within a turn, which a neighbour on the
same cores disturbs less. AUC is progressive, over the last quarter of the examples.

The floor is the MLP on inputs that stand ready. With the gradient of its input it also works out what whoever holds
the rows must be told: that is what the dense part of a model with an embedding does, and what the bars are set
against; the floor without is shown beside it. `berth` is a whole `Session`: it also reads its examples, keeps
progressive figures and looks after signals; the others are handed batches that stand ready. With a server, its CPU
time is counted too.

Last, whole runs of `berth train` with one worker and one server and with two of each, by turns: examples per second
on the wall's clock after the first quarter of the run, which say something only while both cores are free.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn

from berth.train.data import Batch, ClickStream, Share
from berth.train.embedding import Embedding
from berth.train.learner import click_loss
from berth.train.metrics import Window, auc
from berth.train.servers import RemoteStore, Secret, ServerProcess, Settings
from berth.train.session import Session
from berth.train.tables import Initialiser, adagrad

SLOTS, DENSE, DIM, HIDDEN, ROWS = 26, 13, 16, 400, 1_000_000
EXAMPLES = 262_144
TURNS = 16

FLOOR = "MLP floor with input gradient"
BERTH = "berth, one process, all of it"
SERVED = "berth, 1 server + 1 worker"
BARS = {(BERTH, 4096): 1.10, (BERTH, 512): 1.25, (SERVED, 4096): 1.15, (SERVED, 512): 1.25}  # over the floor
SIZES = (4096, 512)
FASTER_BAR = 1.7  # two workers over one
AUC_BAR = 0.003  # below plain torch

SECRET = Secret.random()
Step = Callable[[Batch], Tensor]


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

    def step(batch: Batch) -> Tensor:
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

    def step(batch: Batch) -> Tensor:
        output: Tensor = model(batch.inputs)
        click_loss(output, batch.labels).backward()
        for rule in rules:
            rule.step()
            rule.zero_grad(set_to_none=True)
        return output.detach()

    return step


class Stepped:
    """Takes given batches one by one, and remembers the scores."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []

    def turn(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._scores.append(self._step(batch).reshape(-1))
            self._labels.append(batch.labels)

    def auc(self) -> float:
        labels = torch.cat(self._labels).numpy()
        last = len(labels) // 4
        return auc(torch.cat(self._scores).numpy()[-last:], labels[-last:])


class Trained:
    """A session that goes on for as many steps as the others get batches."""

    def __init__(self, size: int, examples: int, server: ServerProcess | None = None) -> None:
        self._store = RemoteStore([server.address], SECRET) if server else None
        # No thread for reading: what it read ahead would be counted in the next one's turn.
        self._session = Session(WithRows(), ClickStream(), batch=size, ahead=0, store=self._store)
        self._session.progress.window = Window(examples // 4)
        self._steps = self._session.steps()

    def turn(self, batches: Sequence[Batch]) -> None:
        for _ in batches:
            next(self._steps)

    def auc(self) -> float:
        return self._session.progress.auc

    def elsewhere_s(self) -> float:
        """CPU time of its server so far."""
        return 0.0 if self._store is None else float(self._store.statistics()["servers"][0]["cpu_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--batches", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--turns", type=int, default=3, help="whole runs of one and of two workers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    print(f"best possible AUC {ClickStream().best_auc():.4f}, {options.examples:,} examples")
    missed = [note for size in options.batches for note in compare(size, options.examples)]
    if options.turns:
        missed += together(options.turns, options.examples)
    print("\n" + ("\n".join(missed) if missed else "all bars hold"))
    return 1 if missed else 0


def compare(size: int, examples: int) -> list[str]:
    """One table; what it should have reached and did not."""
    server = ServerProcess(Settings(), SECRET)
    try:
        return compare_with(server, size, examples)
    finally:
        server.stop()


def compare_with(server: ServerProcess, size: int, examples: int) -> list[str]:
    """The same beside a server."""
    systems: dict[str, Stepped | Trained] = {
        "MLP floor": Stepped(floor(False)),
        FLOOR: Stepped(floor(True)),
        "torch EmbeddingBag + Adagrad": Stepped(plain_torch()),
        BERTH: Trained(size, examples),
        SERVED: Trained(size, examples, server),
    }
    costs: dict[str, list[float]] = {name: [] for name in ("reading alone", *systems)}
    stream = ClickStream().batches(size, 0, Share(), 0)
    steps = max(1, examples // size // TURNS)
    for _ in range(TURNS):
        batches: list[Batch] = []
        costs["reading alone"].append(
            cost(lambda into: into.extend(islice(stream, steps)), batches, steps * size)
        )
        for name, system in systems.items():
            before = system.elsewhere_s() if isinstance(system, Trained) else 0.0
            spent = cost(system.turn, batches, steps * size)
            after = system.elsewhere_s() if isinstance(system, Trained) else 0.0
            costs[name].append(spent + (after - before) * 1e6 / (steps * size))
    return show(size, costs, {name: system.auc() for name, system in systems.items()})


def cost(turn: Callable[[list[Batch]], None], batches: list[Batch], examples: int) -> float:
    """CPU ms per 1,000 examples of one turn."""
    began = time.process_time()
    turn(batches)
    return (time.process_time() - began) * 1e6 / examples


def show(size: int, costs: dict[str, list[float]], found: dict[str, float]) -> list[str]:
    middle = {name: statistics.median(cost[1:]) for name, cost in costs.items()}
    print(f"\nbatch {size:,}                      CPU ms per 1,000   ± quartiles   x floor     AUC")
    for name, cost in costs.items():
        low, _, high = statistics.quantiles(cost[1:], n=4)
        learned = f"{found[name]:.4f}" if name in found and "MLP" not in name else ""
        ratio = beside_floor(costs, name)
        print(f"  {name:32} {middle[name]:12.2f} {high - low:13.2f} {ratio:9.3f} {learned:>7}", flush=True)
    notes = [
        f"batch {size}: {name}: {beside_floor(costs, name):.3f} x floor, the bar is {bar}"
        for (name, at), bar in BARS.items()
        if at == size and beside_floor(costs, name) > bar
    ]
    if found[BERTH] < found["torch EmbeddingBag + Adagrad"] - AUC_BAR:
        notes.append(f"batch {size}: AUC is more than {AUC_BAR} below plain torch")
    return notes


def beside_floor(costs: dict[str, list[float]], name: str) -> float:
    """Median of the ratios within a turn, without the first."""
    pairs = list(zip(costs[name], costs[FLOOR], strict=True))[1:]
    return statistics.median(cost / floor for cost, floor in pairs)


def together(turns: int, examples: int) -> list[str]:
    """Whole runs by turns, all processes of each counted."""
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(turns):
        for workers, told in runs.items():
            told.append(whole_run(workers, examples))
    print(f"\n{'whole runs, batch 4,096':32} {'examples/s':>12} {'CPU ms per 1,000':>18}")
    for workers, told in runs.items():
        speeds = [one["examples_per_s"] for one in told]
        spent = statistics.median(one["cpu_ms_per_1000"] for one in told)
        span = f"({min(speeds):,.0f}-{max(speeds):,.0f})"
        print(
            f"  {workers} workers + {workers} servers {span:>22} {statistics.median(speeds):9,.0f} {spent:18.2f}"
        )
    faster = statistics.median(
        b["examples_per_s"] / a["examples_per_s"] for a, b in zip(*runs.values(), strict=True)
    )
    print(f"two workers are {faster:.2f} times as fast as one")
    if faster >= FASTER_BAR:
        return []
    return [f"two workers are {faster:.2f} times as fast as one, the bar is {FASTER_BAR}"]


def whole_run(workers: int, examples: int) -> dict[str, float]:
    """`berth train` of this very model."""
    division = ["--workers", str(workers), "--servers", str(workers)]
    model = f"{Path(__file__).resolve()}:make_model"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "figures.csv")
        how = ["--batch", "4096", "--examples", str(examples), "--json", "--csv", str(log)]
        command = [sys.executable, "-m", "berth", "train", model, *how, *division]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        told: dict[str, float] = json.loads(done.stdout)
        return {**told, "examples_per_s": settled_speed(log)}


def settled_speed(log: Path) -> float:
    """Examples per second after the first quarter; what a run needs to get going is the same for all lengths."""
    with log.open() as file:
        lines = [(int(line["examples"]), float(line["examples_per_s"])) for line in csv.DictReader(file)]
    moments = [(examples, examples / speed) for examples, speed in lines]
    last, end_s = moments[-1]
    first, begin_s = next(moment for moment in moments if moment[0] >= last // 4)
    return (last - first) / (end_s - begin_s)


def make_model() -> WithRows:
    """For `berth train benchmarks/train.py:make_model`."""
    return WithRows()


if __name__ == "__main__":
    sys.exit(main())
