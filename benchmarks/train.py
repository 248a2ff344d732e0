"""Training beside what else a user could pick, and beside the dense part alone (`python benchmarks/train.py`).

Work: 26 slots with one id each (Zipf 1.1, vocabularies of 10 to a million), 13 dense features, rows of 16, an MLP
429-400-400-400-1, dense Adam 0.001, sparse AdaGrad 0.05. All candidates get the same examples in interleaved rounds;
the figure is CPU milliseconds per 1,000 examples over all threads, the median of the rounds, and the spread is the
distance between the quartiles. Relative to the floor it is the median of the ratios within a round, which other load
on the same cores disturbs less. AUC is progressive, over the last quarter of the examples.

The floor is the MLP on prepared inputs. With the gradient of its input it also computes what has to be pushed to the
rows: that is the dense part of a model with an embedding, and what the limits refer to; the floor without it is shown
too. `berth` is a whole `Session`: it also reads its examples, keeps progressive metrics and handles signals; the
others get prepared batches. With a server, its CPU time is included.

Last, whole runs of `berth train` with one worker and one server and with two of each, by turns: examples per second
of wall-clock time after the first quarter of the run, which say something only while both cores are free. Two workers
either take a batch each, as one alone does, or share one; with a batch each, their tables are on two servers or in
their own memory. What two cores can do together depends on the machine (two hyper-threads of one core, shared caches,
memory bandwidth, clocks that drop), so beside the speed over one worker there is a bar against the machine's own
ceiling, measured in the same turns: two runs of one worker and one server each, side by side, that know nothing of
each other and have batches of the same size.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn

from berth.train.data import Batch, ClickStream, Share
from berth.train.learner import click_loss
from berth.train.metrics import Window, auc
from berth.train.options import TrainOptions
from berth.train.servers import RemoteStore, Secret, ServerConfig, ServerProcess
from berth.train.session import Session
from berth.zoo.products import onednn_layers, onednn_products
from click_model import DENSE, DIM, SLOTS, WithRows, tower
from results import Figure, figure, finish, options, progress, show

ROWS = 1_000_000  # of the table that plain torch folds ids onto
EXAMPLES = 262_144
WHOLE = 2  # times as many in whole runs: with 32 steps of two workers the spread is wider than the bar
TURNS = 16

FLOOR = "MLP floor with input gradient"
SAME_FLOOR = (
    "the same floor by berth's products"  # by oneDNN where berth uses it: what is left is berth's own cost
)
TORCH = "torch EmbeddingBag + Adagrad"
BERTH = "berth, one process, all of it"
SERVED = "berth, 1 server + 1 worker"
BARS = {(BERTH, 4096): 1.03, (BERTH, 512): 1.08, (SERVED, 4096): 1.08, (SERVED, 512): 1.15}  # over the floor
SIZES = (4096, 512)
SPEED_BAR = 1.8  # two workers with a batch each, over one
CEILING_BAR = 0.85  # two workers that share a training, over two trainings of one worker each, side by side
AUC_BAR = 0.003  # below plain torch

SECRET = Secret.random()
Step = Callable[[Batch], Tensor]


def dense_step(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def floor(gradient: bool, same_products: bool = False) -> Step:
    """The MLP on fixed inputs; with the library of its products chosen by torch, or as berth does."""
    model = tower()
    layers = onednn_layers(model, torch.device("cpu")) if same_products else []
    rule = dense_step(model)
    inputs: dict[int, Tensor] = {}

    def step(batch: Batch) -> Tensor:
        x = inputs.setdefault(batch.examples, torch.randn(batch.examples, SLOTS * DIM + DENSE))
        x.requires_grad_(gradient)
        with onednn_products(layers):
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
        self._session = Session(
            WithRows(), ClickStream(), TrainOptions(batch=size, prefetch_batches=0), store=self._store
        )
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
    parser = options(__doc__)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--batches", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--turns", type=int, default=3, help="whole runs of one and of two workers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    found: list[Figure] = []
    for size in given.batches:
        progress(f"batch {size:,}")
        made = compare(size, given.examples)
        show(made)
        found += made
    if given.turns:
        progress("whole runs")
        made = together(given.turns, WHOLE * given.examples)
        show(made)
        found += made
    return finish("train", found, given.results, shown=True)


def compare(size: int, examples: int) -> list[Figure]:
    """All ways at one size of batches."""
    server = ServerProcess(ServerConfig(), SECRET)
    try:
        return compare_with(server, size, examples)
    finally:
        server.stop()


def compare_with(server: ServerProcess, size: int, examples: int) -> list[Figure]:
    """The same beside a server."""
    systems: dict[str, Stepped | Trained] = {
        "MLP floor": Stepped(floor(False)),
        FLOOR: Stepped(floor(True)),
        SAME_FLOOR: Stepped(floor(True, same_products=True)),
        TORCH: Stepped(plain_torch()),
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
    return figures(size, costs, {name: system.auc() for name, system in systems.items()})


def cost(turn: Callable[[list[Batch]], None], batches: list[Batch], examples: int) -> float:
    """CPU ms per 1,000 examples of one turn."""
    began = time.process_time()
    turn(batches)
    return (time.process_time() - began) * 1e6 / examples


def figures(size: int, costs: dict[str, list[float]], found: dict[str, float]) -> list[Figure]:
    """Without the first turn."""
    spent, ratios, learned = (
        f"Batch {size:,}: {what}" for what in ("CPU ms per 1,000 examples", "times the floor", "AUC")
    )
    made = [figure(spent, name, "ms", cost[1:], quartiles=True) for name, cost in costs.items()]
    for name in (one for one in costs if one != FLOOR):
        bar = {"median": BARS[name, size]} if (name, size) in BARS else None
        for base in (FLOOR, SAME_FLOOR) if bar else (FLOOR,):
            beside = beside_floor(costs, name, base)
            made.append(figure(ratios, name, "x", beside, at_most=bar, quartiles=True, beside=base))
    made.append(figure(learned, "the best possible", "", [ClickStream().best_auc()]))
    for name in (TORCH, BERTH, SERVED):
        bar = {"median": found[TORCH] - AUC_BAR} if name == BERTH else None
        made.append(figure(learned, name, "", [found[name]], at_least=bar))
    return made


def beside_floor(costs: dict[str, list[float]], name: str, base: str = FLOOR) -> list[float]:
    """The ratios within a turn, without the first."""
    pairs = list(zip(costs[name], costs[base], strict=True))[1:]
    return [cost / floor for cost, floor in pairs]


def together(turns: int, examples: int) -> list[Figure]:
    """Whole runs by turns, all processes of each counted."""
    alone, *divided = configs = (Whole(1, 4096), Whole(2, 8192), Whole(2, 4096))
    resident = Whole(2, 8192, resident=True)
    runs: dict[Whole, list[dict[str, float]]] = {config: [] for config in (*configs, resident)}
    apart: dict[Whole, list[float]] = {config: [] for config in divided}  # the same work, each on its own
    for _ in range(turns):
        for config, reported in runs.items():
            reported.extend(whole_runs(1, config, examples))
        for config, ceilings in apart.items():
            one = Whole(1, config.batch // config.workers)
            side_by_side = whole_runs(config.workers, one, examples // config.workers)
            ceilings.append(sum(run["examples_per_s"] for run in side_by_side))
    title = "Whole runs"
    made = [
        figure(title, f"{config}: {what}", unit, [one[key] for one in reported])
        for what, unit, key in (
            ("examples", "/s", "examples_per_s"),
            ("CPU per 1,000 examples", "ms", "cpu_ms_per_1000"),
        )
        for config, reported in runs.items()
    ]
    for config in divided:
        what = f"{config}: speed"
        bar = {"median": SPEED_BAR} if config.batch // config.workers == alone.batch else None
        faster = speed_over(runs[config], runs[alone])
        made.append(figure(title, what, "x", faster, at_least=bar, beside=str(alone)))
        each = config.batch // config.workers
        ceiling = f"{config.workers} runs of 1 worker + 1 server side by side, batch {each:,}"
        made.append(figure(title, f"{ceiling}: examples", "/s", apart[config]))
        reached = [
            one["examples_per_s"] / most for one, most in zip(runs[config], apart[config], strict=True)
        ]
        bar = {"median": CEILING_BAR}
        made.append(figure(title, f"{what} of the ceiling", "x", reached, at_least=bar, beside=ceiling))
    served = Whole(resident.workers, resident.batch)
    faster = speed_over(runs[resident], runs[served])
    made.append(figure(title, f"{resident}: speed", "x", faster, beside=str(served)))
    return made


@dataclass(frozen=True)
class Whole:
    """A whole run: workers that divide a batch, with as many servers or with the tables in their memory."""

    workers: int
    batch: int
    resident: bool = False

    def __str__(self) -> str:
        if self.workers == 1:
            return f"1 worker + 1 server, batch {self.batch:,}"
        tables = "with resident tables" if self.resident else f"+ {self.workers} servers"
        return f"{self.workers} workers {tables}, {self.batch // self.workers:,} examples each"

    @property
    def options(self) -> list[str]:
        """The words of the command line."""
        tables = ["--tables", "resident"] if self.resident else ["--servers", str(self.workers)]
        return ["--workers", str(self.workers), "--batch", str(self.batch), *tables]


def speed_over(runs: list[dict[str, float]], others: list[dict[str, float]]) -> list[float]:
    """How many times as fast, turn by turn."""
    return [one["examples_per_s"] / other["examples_per_s"] for one, other in zip(runs, others, strict=True)]


def whole_runs(count: int, config: Whole, examples: int) -> list[dict[str, float]]:
    """`berth train` of this very model, `count` times at once."""
    model = f"{Path(__file__).with_name('click_model.py').resolve()}:make_model"
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"figures-{number}.csv") for number in range(count)]
        how = ["--examples", str(examples), "--json", *config.options]
        command = [sys.executable, "-m", "berth", "train", model, *how]
        started = [
            subprocess.Popen([*command, "--csv", str(log)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for log in logs
        ]
        reported = [json.loads(process.communicate()[0]) for process in started]
        return [
            {**one, "examples_per_s": settled_speed(log)} for one, log in zip(reported, logs, strict=True)
        ]


def settled_speed(log: Path) -> float:
    """Examples per second after the first quarter; what a run needs to get going is the same for all lengths."""
    with log.open() as file:
        lines = [(int(line["examples"]), float(line["examples_per_s"])) for line in csv.DictReader(file)]
    moments = [(examples, examples / speed) for examples, speed in lines]
    last, end_s = moments[-1]
    first, begin_s = next(moment for moment in moments if moment[0] >= last // 4)
    return (last - first) / (end_s - begin_s)


if __name__ == "__main__":
    sys.exit(main())
