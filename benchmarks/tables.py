"""Tables beside what else a user could pick: pull and push of 16 floats per key (`python benchmarks/tables.py`).

Every line is measured in turns with the others, in CPU time of one thread; the figure is the median of the
turns, the spread the distance between the quartiles in per cent of it. Rows are counted as keys of the batch,
duplicates included. `distinct` keys are drawn evenly and without repetition, `zipf` ones by Zipf(1.1).
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from berth.train.tables import Optimiser, Table, adagrad, adam, rowwise_adagrad
from results import Figure, figure, finish, options

DIM = 16
BATCH = 4096 * 26
TURNS = 9
PEERS = {
    "pull  berth": "pull  torch EmbeddingBag",
    "push  berth adagrad": "push  torch Adagrad",
    "push  berth adam": "push  torch SparseAdam",
}

BARS = {"pull  berth, out=": 20.0, "push  berth adagrad": 8.0}  # million rows per CPU-second

Keys = NDArray[np.int64]
Floats = NDArray[np.float32]
Work = Callable[[Keys], object]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--budget-rows", type=int, default=0, help="also measure a table with this many rows under --budget"
    )
    parser.add_argument("--budget-mib", type=int, default=1024)
    given = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    gradients = random.standard_normal((BATCH, DIM)).astype(np.float32) * np.float32(1e-3)
    found: list[Figure] = []
    for name, batches in (("distinct", even(random, given.rows)), ("zipf", zipf(random, given.rows))):
        known = np.mean([len(np.unique(batch)) for batch in batches]) / BATCH
        title = f"{given.rows:,} rows, batches of {BATCH:,} {name} keys ({known:.0%} of a batch distinct)"
        works = berth_works(given.rows, gradients) | torch_works(given.rows, gradients)
        works |= plain_works(given.rows, gradients)
        found += figures(title, measure(works, batches))
    if given.budget_rows:
        found += under_budget(given.budget_rows, given.budget_mib << 20, gradients)
    return finish("tables", found, given.results)


def even(random: np.random.Generator, rows: int) -> list[Keys]:
    return [random.choice(rows, BATCH, replace=False).astype(np.int64) for _ in range(TURNS)]


def zipf(random: np.random.Generator, rows: int, batches: int = TURNS, size: int = BATCH) -> list[Keys]:
    """Ranks by Zipf(1.1), cut at the number of rows; the popular ones are scattered over the table."""
    weights = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -1.1)
    where = random.permutation(rows)
    drawn = [np.searchsorted(weights, random.random(size) * weights[-1]) for _ in range(batches)]
    return [where[ranks].astype(np.int64) for ranks in drawn]


def berth_works(rows: int, gradients: Floats) -> dict[str, Work]:
    works: dict[str, Work] = {}
    rules: list[Optimiser] = [rowwise_adagrad(), adagrad(), adam()]
    for rule in rules:
        table = Table(DIM, optimiser=rule)
        table.pull(np.random.default_rng(1).permutation(rows))
        if rule.kind == "adagrad":
            works["pull  berth"] = table.pull
            works["pull  berth, out="] = pulling(table)
        works[f"push  berth {rule.kind}"] = pushing(table, gradients)
    return works


def pulling(table: Table) -> Work:
    out = np.empty((BATCH, DIM), np.float32)
    return lambda keys: table.pull(keys, out=out)


def pushing(table: Table, gradients: Floats) -> Work:
    return lambda keys: table.push(keys, gradients)


def torch_works(rows: int, gradients: Floats) -> dict[str, Work]:
    works: dict[str, Work] = {}
    slopes = torch.from_numpy(gradients)
    for name in ("Adagrad", "SparseAdam"):
        bag = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
        rule: torch.optim.Optimizer = (
            torch.optim.Adagrad(bag.parameters(), lr=0.05)
            if name == "Adagrad"
            else torch.optim.SparseAdam(bag.parameters(), lr=0.001)
        )
        works["pull  torch EmbeddingBag"] = looking_up(bag)
        works[f"push  torch {name}"] = stepping(bag, rule, slopes)
    return works


def looking_up(bag: torch.nn.EmbeddingBag) -> Work:
    offsets = torch.arange(BATCH)

    def work(keys: Keys) -> object:
        with torch.no_grad():
            return bag(torch.from_numpy(keys), offsets)

    return work


def stepping(bag: torch.nn.EmbeddingBag, rule: torch.optim.Optimizer, slopes: torch.Tensor) -> Work:
    """The optimiser's step on a sparse gradient; the backward pass is not counted."""

    def work(keys: Keys) -> object:
        indices = torch.from_numpy(keys)[None]
        bag.weight.grad = torch.sparse_coo_tensor(indices, slopes, bag.weight.shape, check_invariants=False)
        rule.step()
        return None

    return work


def plain_works(rows: int, gradients: Floats) -> dict[str, Work]:
    """A dictionary of numpy rows with AdaGrad, on a fortieth of the batch; and numpy.take, which has no keys."""
    weights = np.zeros((rows, DIM), np.float32)
    rule = dict(zip(range(rows), np.zeros((rows, 2, DIM), np.float32), strict=True))
    out = np.empty((BATCH, DIM), np.float32)

    def pull(keys: Keys) -> object:
        return np.array([rule[key][0] for key in keys.tolist()])

    def push(keys: Keys) -> object:
        for key, slope in zip(keys.tolist(), gradients, strict=False):
            row = rule[key]
            row[1] += slope * slope
            row[0] -= 0.05 * slope / (np.sqrt(row[1]) + 1e-10)
        return None

    few = BATCH // 40
    return {
        "pull  numpy.take": lambda keys: np.take(weights, keys, axis=0, out=out, mode="clip"),
        "pull  python dict": lambda keys: pull(keys[:few]),
        "push  python dict": lambda keys: push(keys[:few]),
    }


def measure(works: dict[str, Work], batches: list[Keys]) -> dict[str, list[float]]:
    """Million rows per CPU-second of each, turn by turn, after one turn that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn, keys in enumerate([batches[0], *batches]):
        for name, work in works.items():
            start = time.process_time()
            work(keys)
            took = time.process_time() - start
            done = BATCH // 40 if "dict" in name else BATCH
            if turn:
                rates[name].append(done / took / 1e6)
    return rates


def figures(title: str, rates: dict[str, list[float]]) -> list[Figure]:
    """The fastest first, and berth beside its peers within a turn."""
    order = sorted(rates, key=lambda name: (name[:4], -statistics.median(rates[name])))
    made = [
        figure(
            title,
            name,
            "M rows/CPU-s",
            rates[name],
            at_least={"median": BARS[name]} if name in BARS else None,
            quartiles=True,
        )
        for name in order
    ]
    for own, peer in PEERS.items():
        if own in rates:
            ratios = [mine / other for mine, other in zip(rates[own], rates[peer], strict=True)]
            made.append(figure(title, own, "x", ratios, quartiles=True, beside=peer))
    return made


def under_budget(rows: int, budget_bytes: int, gradients: Floats) -> list[Figure]:
    """Pull and push together, in memory and under a budget, on the same Zipf keys after the same warm-up."""
    batches = zipf(np.random.default_rng(2), rows)
    title = f"{rows:,} rows of {DIM} under {budget_bytes >> 20} MiB, zipf"
    with tempfile.TemporaryDirectory() as folder:
        tables = {
            "cold rows in a file": Table(DIM, memory_bytes=budget_bytes, folder=folder),
            "all in memory": Table(DIM),
        }
        works: dict[str, Work] = {}
        for name, table in tables.items():
            start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for first in range(0, rows, 1_000_000):
                table.touch(np.arange(first, min(rows, first + 1_000_000)))
            for batch in batches * 3:
                table.pull(batch)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
            now = table.statistics()
            print(
                f"  {name:28} made in {time.process_time() - start:.0f} CPU-s; memory {now.memory_bytes >> 20} MiB "
                f"(process grew by {grown}), file {now.cold_bytes >> 20} MiB, hot {now.hot_rows / now.rows:.0%}",
                flush=True,
            )
            works[f"both  {name}"] = both(table, gradients)
        found = figures(title, measure(works, zipf(np.random.default_rng(3), rows)))
        for name, table in tables.items():
            now = table.statistics()
            print(
                f"  {name:28} fetched {now.fetched:,}, evicted {now.evicted:,}, hit rate {now.hit_rate:.1%}"
            )
    return found


def both(table: Table, gradients: Floats) -> Work:
    def work(keys: Keys) -> object:
        table.pull(keys)
        table.push(keys, gradients)
        return None

    return work


if __name__ == "__main__":
    sys.exit(main())
