"""What it costs that rows live in another process (`python benchmarks/servers.py`).

The work is one table of a million rows of 16, AdaGrad, 26 Zipf(1.1) keys an example: pull, push, end of step, sync,
one worker. Every way is measured in turns with the others. CPU is that of worker and servers together, wall is
the worker's; medians of the turns, the spread is the distance between the quartiles in per cent.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.train.servers import ClientOptions, RemoteStore, Secret, ServerConfig, ServerProcess
from berth.train.servers.protocol import CODECS, Codec
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, Table, adagrad
from results import Figure, figure, finish, options

DIM, SLOTS, ROWS = 16, 26, 1_000_000

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]


@dataclass
class Way:
    name: str
    step: Callable[[int, Keys, Floats, Floats], None]
    pids: list[int] = field(default_factory=list)
    moved: Callable[[], int] = lambda: 0
    cpu_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--batches", type=int, nargs="+", default=[4096, 512])
    parser.add_argument("--codecs", action="store_true", help="also rows in half the bytes")
    given = parser.parse_args()
    found: list[Figure] = []
    secret = Secret.random()
    spec = TableSpec("rows", DIM, adagrad(), Initialiser())
    for batch in given.batches:
        keys = zipf(np.random.default_rng(0), batch * SLOTS)
        servers: list[ServerProcess] = []
        stores: list[RemoteStore] = []
        try:
            ways = [in_process()]
            for name, count, shared, codec in cases(given.codecs):
                config = [ServerConfig(index=index, servers=count) for index in range(count)]
                started = [ServerProcess(setting, secret) for setting in config]
                servers += started
                store = RemoteStore(
                    [server.address for server in started],
                    secret,
                    codec=codec,
                    options=ClientOptions(shared=shared),
                )
                stores.append(store)
                store.open([spec])
                ways.append(remote(name, store, [server.pid for server in started]))
            measure(ways, keys, given.turns, batch)
            found += figures(ways, batch, keys)
        finally:
            for store in stores:
                store.close()
            for server in servers:
                server.stop()
    return finish("servers", found, given.results)


def cases(codecs: bool) -> list[tuple[str, int, bool, Codec]]:
    found: list[tuple[str, int, bool, Codec]] = [
        ("1 server, shared memory", 1, True, "fp32"),
        ("2 servers, shared memory", 2, True, "fp32"),
        ("1 server, TCP", 1, False, "fp32"),
    ]
    if codecs:
        found += [(f"1 server, TCP, {codec}", 1, False, codec) for codec in CODECS[1:]]
    return found


def zipf(random: np.random.Generator, count: int) -> list[Keys]:
    """Ranks by Zipf(1.1), cut at the number of rows; the popular ones are scattered over the table."""
    weights = np.cumsum(np.arange(1, ROWS + 1, dtype=np.float64) ** -1.1)
    where = random.permutation(ROWS)
    drawn = [np.searchsorted(weights, random.random(count) * weights[-1]) for _ in range(8)]
    return [where[ranks].astype(np.uint64) for ranks in drawn]


def in_process() -> Way:
    table = Table(DIM, optimiser=adagrad())

    def step(number: int, keys: Keys, gradients: Floats, out: Floats) -> None:
        table.pull(keys, out=out)
        table.push(keys, gradients)

    table.touch(np.arange(ROWS))
    return Way("table in the process", step)


def remote(name: str, store: RemoteStore, pids: list[int]) -> Way:
    def step(number: int, keys: Keys, gradients: Floats, out: Floats) -> None:
        store.pull("rows", keys, out)
        store.push("rows", keys, gradients)
        store.end_step(number)

    for first in range(0, ROWS, 100_000):
        store.pull("rows", np.arange(first, first + 100_000, dtype=np.uint64))
    return Way(name, step, pids, lambda: sum(sum(link.bytes_moved) for link in store.pool))


def measure(ways: list[Way], batches: list[Keys], turns: int, batch: int) -> None:
    """Use enough steps per round for the resolution of another process's CPU clock."""
    steps = max(16384 // batch * 4, 16)
    random = np.random.default_rng(1)
    gradients = random.standard_normal((len(batches[0]), DIM)).astype(np.float32) * np.float32(1e-3)
    out = np.empty((len(batches[0]), DIM), np.float32)
    for turn in range(turns + 1):
        for way in ways:
            cpu, wall, moved = cpu_s(way.pids), time.perf_counter(), way.moved()
            for number in range(steps):
                way.step(turn * steps + number, batches[number % len(batches)], gradients, out)
            if turn:
                scale = 1000 / (steps * batch / 1000)
                way.cpu_ms.append((cpu_s(way.pids) - cpu) * scale)
                way.wall_ms.append((time.perf_counter() - wall) * scale)
                way.bytes.append((way.moved() - moved) / steps)


def cpu_s(pids: list[int]) -> float:
    """CPU of this process and others, kernel included."""
    return time.process_time() + sum(_schedstat(pid) for pid in pids)


def _schedstat(pid: int) -> float:
    """Nanoseconds on a processor, over all threads."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def figures(ways: list[Way], batch: int, keys: list[Keys]) -> list[Figure]:
    share = statistics.mean(len(np.unique(batch_keys)) / len(batch_keys) for batch_keys in keys)
    title = f"Batch {batch:,}: {batch * SLOTS:,} keys, {share:.0%} distinct; per 1,000 examples"
    made = []
    for way in ways:
        made.append(figure(title, f"{way.name}, CPU", "ms", way.cpu_ms, quartiles=True))
        made.append(figure(title, f"{way.name}, wall", "ms", way.wall_ms, quartiles=True))
        if way.pids:
            ratios = [mine / alone for mine, alone in zip(way.cpu_ms, ways[0].cpu_ms, strict=True)]
            made.append(figure(title, f"{way.name}, CPU", "x", ratios, quartiles=True, beside=ways[0].name))
            moved = statistics.median(way.bytes) / 1e6
            made.append(figure(title, f"{way.name}, moved in a step", "MB", [moved]))
    return made


if __name__ == "__main__":
    sys.exit(main())
