"""What reading examples costs, and what a thread that reads ahead saves (`python benchmarks/train_reading.py`).

The work of `benchmarks/train.py` at batch 4,096, from drawn clicks, Criteo's TSV and Parquet. Reading alone is in CPU
milliseconds per 1,000 examples and as a share of the whole step; the bar is 3 % for files. Then whole sessions by
turns: one that reads between two steps, one whose batches are read by a thread meanwhile. A thread costs nothing more
in CPU time; the wall-clock time it saves needs a second free core.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from berth.train.data import Batch, BatchSource, ClickStream, Share
from berth.train.data.files import FileStream
from berth.train.options import TrainOptions
from berth.train.session import Session
from click_model import DENSE, SLOTS, WithRows
from results import Figure, figure, finish, options, progress

BATCH, STEPS = 4096, 16  # of a turn: a whole window of the shuffle, which is read at once
BAR = 0.03  # of a step
READ, AHEAD = "read between steps", "read ahead by a thread"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--examples", type=int, default=131_072)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources(Path(folder), given.examples).items():
            progress(name)
            found += compare(name, source, given.turns)
    return finish("train-reading", found, given.results)


def sources(folder: Path, examples: int) -> dict[str, Callable[[], BatchSource]]:
    """The same clicks, drawn and from files that are read again and again."""
    keys, dense, _, labels = ClickStream().draw(0, examples)
    ids, counts = keys * 0x9E3779B1 & 0xFFFFFFFF, np.abs(dense * 50).astype(np.int64)
    columns = {"label": labels}
    columns |= {f"I{number + 1}": counts[:, number] for number in range(DENSE)}
    columns |= {f"C{number + 1}": ids[:, number] for number in range(SLOTS)}
    frame = pl.DataFrame(columns)
    frame.write_parquet(folder / "clicks.parquet")
    as_text = [pl.Series(name, [f"{one:08x}" for one in columns[name]]) for name in columns if name[0] == "C"]
    frame.with_columns(as_text).write_csv(folder / "clicks.tsv", separator="\t", include_header=False)
    return {
        "drawn clicks": ClickStream,
        "Criteo TSV": lambda: FileStream(folder / "clicks.tsv", epochs=None),
        "Parquet": lambda: FileStream(folder / "clicks.parquet", epochs=None),
    }


def compare(name: str, source: Callable[[], BatchSource], turns: int) -> list[Figure]:
    """Reading alone, and whole sessions in two ways."""
    alone = source().batches(BATCH, 0, Share(), 0)
    sessions = {
        way: Session(WithRows(), source(), TrainOptions(batch=BATCH, prefetch_batches=ahead))
        for way, ahead in ((READ, 0), (AHEAD, 2))
    }
    runs: dict[str, Iterator[Batch] | Iterator[float]] = {name: alone}
    runs |= {way: session.steps() for way, session in sessions.items()}
    spent: dict[str, list[tuple[float, float]]] = {run: [] for run in runs}
    for _ in range(turns + 1):
        for run, steps in runs.items():
            spent[run].append(timed(steps))
    close([steps for steps in runs.values() if isinstance(steps, Generator)])
    return figures(name, {run: taken[1:] for run, taken in spent.items()})


def figures(name: str, spent: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    """From (CPU, wall) milliseconds per 1,000 examples of each turn."""
    title = f"{name}, batch {BATCH:,}"
    cpu = {run: [cost for cost, _ in taken] for run, taken in spent.items()}
    share = 100 * statistics.median(cpu[name]) / statistics.median(cpu[READ])
    bar = None if name == "drawn clicks" else {"median": 100 * BAR}
    made = [
        figure(title, "reading alone, CPU per 1,000 examples", "ms", cpu[name]),
        figure(title, "reading alone", "%", [share], at_most=bar, beside="CPU time of a whole step"),
    ]
    for way in (READ, AHEAD):
        made.append(figure(title, f"{way}, CPU per 1,000 examples", "ms", cpu[way]))
        made.append(figure(title, f"{way}, examples", "/s", [1e6 / wall for _, wall in spent[way]]))
    return made


def close(runs: list[Generator[Any, None, None]]) -> None:
    """Lets readers end."""
    for run in runs:
        run.close()


def timed(steps: Iterator[object]) -> tuple[float, float]:
    """CPU and wall milliseconds per 1,000 examples of some steps."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(STEPS):
        next(steps)
    scale = 1e6 / (STEPS * BATCH)
    return (time.process_time() - cpu) * scale, (time.perf_counter() - wall) * scale


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
