"""Training with a table larger than its memory, beside the same with all of it in memory.

`python benchmarks/train_budget.py`: 20 million rows of 16 under 1 GiB, index included; 26 Zipf(1.1) keys an example
over all rows, else the work of `benchmarks/train.py`. Each variant is a separate process, which reports its resident
memory; they train in interleaved rounds on the same batches. The ratio of examples per second is that of neighbouring
rounds; its median is compared with the limit. Every row is in the table before the first round.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from berth.train.data import Batch, Share
from berth.train.local import LocalStore
from berth.train.options import TrainOptions
from berth.train.session import Session
from click_model import DENSE, DIM, SLOTS, WithRows
from results import Figure, figure, finish, options, progress
from tables import Keys, zipf

BATCH, STEPS, WARM_UP = 4096, 4, 24  # examples of a step, steps of a turn and before the first
BAR = 0.5  # of the examples per second that the table in memory allows
IN_MEMORY, BUDGET = "all in memory", "under the budget"


@dataclass(frozen=True)
class Drawn:
    """A source of examples whose keys were drawn beforehand, so that drawing them costs no turn anything."""

    keys: list[Keys]

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "drawn"}

    def batches(self, batch: int, step: int, share: Share, seed: int) -> Iterator[Batch]:
        random = np.random.default_rng(seed)
        dense = torch.from_numpy(random.standard_normal((batch, DENSE)).astype(np.float32))
        labels = torch.from_numpy(random.integers(0, 2, batch))
        for keys in self.keys[step:]:
            slots = torch.from_numpy(keys.reshape(batch, SLOTS, 1))
            yield Batch({"slots": slots, "dense": dense}, labels, batch)

    def position(self, step: int) -> Mapping[str, Any]:
        return {}

    def seek(self, position: Mapping[str, Any]) -> None:
        pass


def train(parent: Connection, rows: int, memory_bytes: int | None, keys: list[Keys]) -> None:
    """A process: fills its table, then trains a turn on request."""
    bare = resident_bytes()
    session = Session(
        WithRows(), Drawn(keys), TrainOptions(batch=BATCH, prefetch_batches=0, memory=memory_bytes)
    )
    assert isinstance(session.store, LocalStore)
    table = session.store.table("rows")
    for first in range(0, rows, 1 << 20):
        table.touch(np.arange(first, min(rows, first + (1 << 20))))
    steps = session.steps()
    take(steps, WARM_UP)
    before = replace(table.counts)
    parent.send(None)
    while (count := parent.recv()) is not None:
        wall, cpu = time.perf_counter(), time.process_time()
        take(steps, count)
        parent.send((time.perf_counter() - wall, time.process_time() - cpu))
    now = table.statistics()
    missed, pulled = now.counts.missed - before.missed, now.counts.pulled - before.pulled
    facts = {
        "rows": now.rows,
        "hot": now.hot_rows / now.rows,
        "memory_bytes": now.memory_bytes,
        "cold_bytes": now.cold_bytes,
        "hit_rate": 1 - missed / pulled,
        "resident_bytes": resident_bytes() - bare,
    }
    steps.close()
    session.close()
    parent.send(facts)


def take(steps: Iterator[float], count: int) -> None:
    for _ in range(count):
        next(steps)


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Way:
    """One of the two processes."""

    def __init__(self, rows: int, memory_bytes: int | None, keys: list[Keys]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._child, its_end = spawn.Pipe()
        self._process = spawn.Process(target=train, args=(its_end, rows, memory_bytes, keys), daemon=True)
        self._process.start()
        self._child.recv()
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def turn(self) -> None:
        self._child.send(STEPS)
        wall, cpu = self._child.recv()
        self.wall_s.append(wall)
        self.cpu_s.append(cpu)

    def end(self) -> dict[str, Any]:
        self._child.send(None)
        facts: dict[str, Any] = self._child.recv()
        self._process.join()
        return facts


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--mib", type=int, default=1024, help="budget of the table, index included")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    random = np.random.default_rng(4)
    keys = zipf(random, given.rows, WARM_UP + STEPS * (given.turns + 1), BATCH * SLOTS)
    progress("filling both tables")
    ways = {
        name: Way(given.rows, memory, keys) for name, memory in ((IN_MEMORY, None), (BUDGET, given.mib << 20))
    }
    progress(f"{given.turns} turns")
    for _ in range(given.turns):
        for way in ways.values():
            way.turn()
    title = f"{given.rows:,} rows of {DIM} and AdaGrad under {given.mib:,} MiB, batch {BATCH:,}, Zipf(1.1)"
    found = kept(title, ways[IN_MEMORY], ways[BUDGET])
    for name, way in ways.items():
        found += figures(title, name, way, way.end())
    return finish("train-budget", found, given.results)


def kept(title: str, memory: Way, budget: Way) -> list[Figure]:
    """What is left of the speed, between neighbouring turns."""
    wall = [100 * a / b for a, b in zip(memory.wall_s, budget.wall_s, strict=True)]
    cpu = [100 * a / b for a, b in zip(memory.cpu_s, budget.cpu_s, strict=True)]
    bar = {"median": 100 * BAR}
    return [
        figure(title, "examples per second kept", "%", wall, at_least=bar, quartiles=True, beside=IN_MEMORY),
        figure(title, "the same by CPU time", "%", cpu, quartiles=True, beside=IN_MEMORY),
    ]


def figures(title: str, name: str, way: Way, facts: dict[str, Any]) -> list[Figure]:
    """Of one way."""
    examples = BATCH * STEPS
    speeds = [examples / wall for wall in way.wall_s]
    cpu_ms = [cpu * 1e6 / examples for cpu in way.cpu_s]
    counted = {
        "the table's memory": ("MiB", facts["memory_bytes"] / 2**20),
        "memory of a row": ("bytes", facts["memory_bytes"] / facts["rows"]),
        "what the process grew by": ("MiB", facts["resident_bytes"] / 2**20),
        "file": ("MiB", facts["cold_bytes"] / 2**20),
        "rows in memory": ("%", 100 * facts["hot"]),
        "hit rate": ("%", 100 * facts["hit_rate"]),
    }
    return [
        figure(title, f"{name}, examples", "/s", speeds, quartiles=True),
        figure(title, f"{name}, CPU per 1,000 examples", "ms", cpu_ms, quartiles=True),
        *(figure(title, f"{name}, {what}", unit, [value]) for what, (unit, value) in counted.items()),
    ]


if __name__ == "__main__":
    sys.exit(main())
