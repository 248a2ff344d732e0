"""Many small simulations: load x congestion x mix x seed x policy, in parallel, and never twice.

Every finished cell is one line in `cells.jsonl`. A cell is known by everything that went into it, the code
of the engine and of the policy included; run again, a sweep does only what is not there yet.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.native.cache import fingerprint, policies_fingerprint
from berth.schedule.policies.registry import load_policy
from berth.simulate.faults import parse_faults
from berth.simulate.frames import runs_frame
from berth.simulate.intervals import FEWEST_SEEDS, has_ratios, median_interval, paired_ratios
from berth.simulate.metrics import summarise
from berth.simulate.outcome import require_finished
from berth.simulate.reference import reference_device
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import generate_for
from berth.workload.arrivals import load_arrivals
from berth.workload.mix import load_mix

Row = dict[str, Any]  # a cell and its figures
Results = Callable[[Sequence["Cell"], int], Iterable[Row]]  # runs cells in some number of processes
AT_ONCE = 0.0  # the load of cells whose jobs are all submitted at time 0


@dataclass(frozen=True, slots=True)
class Cell:
    """Everything that goes into one simulation."""

    cluster: str
    policy: str
    load: float
    congestion: float
    mix: str
    seed: int
    jobs: int
    sizes: str
    durations: str
    eviction_s: float
    eviction_large_s: float
    estimate_error: float
    reference_device: str
    arrivals: str = "poisson"
    faults: str = ""  # as in --faults; `seed` is added to its own
    code: str = ""

    @property
    def key(self) -> str:
        """The cell as one line of text."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a sweep: all combinations."""

    cluster: str
    policies: tuple[str, ...]
    loads: tuple[float, ...]
    congestions: tuple[float, ...]
    mixes: tuple[str, ...]
    seeds: int = FEWEST_SEEDS
    jobs: int = 1000
    sizes: str = "powers-of-two"
    durations: str = "lognormal:1h:1.5"
    eviction_s: float = 40.0
    eviction_large_s: float = 60.0
    estimate_error: float = 0.0
    reference_device: str | None = None  # None: the cluster's most common GPU
    arrivals: str = "poisson"  # or bursty, or at-once: all jobs at time 0, at the load `AT_ONCE`
    faults: str = ""  # such as mtbf=30d,mttr=4h: failures drawn again for each seed

    def __post_init__(self) -> None:
        if len(self.policies) < 2:
            raise InputError("a sweep compares policies", hint="give --policy twice, e.g. fifo and srtf")
        if self.seeds < 1 or self.jobs < 2:
            raise InputError("a sweep takes 1 seed and 2 jobs or more")
        if self.at_once != (self.loads == (AT_ONCE,)) or not (
            self.at_once or all(value > 0 for value in self.loads)
        ):
            raise InputError(
                "jobs that arrive at once have no load" if self.at_once else "loads are above zero",
                hint="leave out --load" if self.at_once else None,
            )
        parse_faults(self.faults)
        if not all(value >= 1 for value in self.congestions):
            raise InputError("a congestion is below 1", hint="1 is an idle network, 5 one five times slower")

    @property
    def at_once(self) -> bool:
        """Whether all jobs are submitted at time 0."""
        return load_arrivals(self.arrivals).kind == "at-once"

    def cells(self) -> list[Cell]:
        """All of them, policy by policy within a trace."""
        reference = reference_device(load_cluster(self.cluster), self.reference_device).name
        codes = {
            (policy, mix): code_of(policy, self.cluster, mix)
            for policy in self.policies
            for mix in self.mixes
        }
        return [
            Cell(
                cluster=self.cluster,
                policy=policy,
                load=load,
                congestion=congestion,
                mix=mix,
                seed=seed,
                jobs=self.jobs,
                sizes=self.sizes,
                durations=self.durations,
                eviction_s=self.eviction_s,
                eviction_large_s=self.eviction_large_s,
                estimate_error=self.estimate_error,
                reference_device=reference,
                arrivals=self.arrivals,
                faults=self.faults,
                code=codes[policy, mix],
            )
            for mix, load, congestion, seed, policy in itertools.product(
                self.mixes, self.loads, self.congestions, range(self.seeds), self.policies
            )
        ]


def code_of(policy: str, *inputs: str) -> str:
    """A name for what a cell ran: another engine, policy, or content of an input that is a file, is another cell."""
    source = inspect.getsourcefile(type(load_policy(policy)))
    own = Path(source).read_bytes() if source else b""
    found = hashlib.sha256((fingerprint() + policies_fingerprint()).encode() + own)
    for path in map(Path, inputs):
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()[:12]


def run_cell(cell: Cell) -> Row:
    """Plays one cell."""
    cluster = load_cluster(cell.cluster)
    asked = {
        "jobs": str(cell.jobs),
        "sizes": cell.sizes,
        "durations": cell.durations,
        "arrivals": cell.arrivals,
        "seed": str(cell.seed),
    }
    if cell.load != AT_ONCE:
        asked["load"] = repr(cell.load)
    setting = Setting(
        congestion=cell.congestion,
        mix=load_mix(cell.mix),
        seed=cell.seed,
        estimate_error=cell.estimate_error,
        reference_device=cell.reference_device,
        eviction_s=cell.eviction_s,
        eviction_large_s=cell.eviction_large_s,
        fault_spec=parse_faults(cell.faults) if cell.faults else None,
    )
    run = simulate(generate_for(cluster, asked), cluster, load_policy(cell.policy), setting, name=cell.policy)
    return {"cell": asdict(cell), "result": summarise(require_finished(run)).as_json()}


def sweep(
    cells: Sequence[Cell],
    file: Path | None = None,
    *,
    workers: int = 1,
    results: Results | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Runs the cells that `file` does not hold yet; returns all, in the order asked for.

    Without a file nothing is kept. A program that gives more than one worker needs the usual `if __name__ ==
    "__main__"`: each worker imports it. `results` runs cells elsewhere than in processes of this machine.
    """
    if file is None:
        with TemporaryDirectory() as scratch:
            return sweep(
                cells, Path(scratch) / "cells.jsonl", workers=workers, results=results, progress=progress
            )
    known, whole = read_cells(file)
    keys = [cell.key for cell in cells]
    missing = {key: cell for key, cell in zip(keys, cells, strict=True) if key not in known}
    done = len(cells) - sum(key in missing for key in keys)
    if file.exists():
        os.truncate(file, whole)
    for row in (results or _results)(list(missing.values()), workers):
        known[json.dumps(row["cell"], sort_keys=True)] = row
        _append(row, file)
        done += 1
        if progress is not None:
            progress(done, len(cells))
    return [known[key] for key in keys]


def _append(row: Row, file: Path) -> None:
    try:
        with file.open("ab") as out:
            out.write(json.dumps(row, allow_nan=False).encode() + b"\n")
    except OSError as error:
        hint = "the cells before are kept: the same command goes on"
        raise InputError(f"can't be written: {error.strerror}", where=str(file), hint=hint) from None


def count_kept(cells: Sequence[Cell], file: Path) -> int:
    """How many of the cells `file` holds."""
    known, _ = read_cells(file)
    return sum(cell.key in known for cell in cells)


def sweep_frame(rows: Iterable[Row]) -> pl.DataFrame:
    """One row per run: everything that went into the cell, its `fault_seed`, and every figure of its summary."""
    return runs_frame(
        ({**row["cell"], "fault_seed": _fault_seed(row["cell"])}, row["result"]) for row in rows
    )


def _fault_seed(cell: Mapping[str, Any]) -> int | None:
    spec = parse_faults(cell["faults"])
    return spec.at(cell["seed"]).seed if spec.random else None


def read_cells(file: Path) -> tuple[dict[str, Row], int]:
    """The finished cells by key, and the length of the file up to the end of the last whole line.

    A crash may leave a line cut short behind that. The file is not changed here.
    """
    if not file.exists():
        return {}, 0
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    rows = {}
    for number, line in enumerate(data[:whole].splitlines(), start=1):
        try:
            row = json.loads(line)
            rows[json.dumps(row["cell"], sort_keys=True)] = row
        except (ValueError, KeyError, TypeError):
            hint = "delete the line, or choose another folder"
            raise InputError("is not a finished cell", where=f"{file}:{number}", hint=hint) from None
    return rows, whole


def _results(cells: Sequence[Cell], workers: int) -> Iterable[Row]:
    if workers <= 1 or len(cells) <= 1:
        yield from map(run_cell, cells)
        return
    # The first cell runs alone: if kernels have to be compiled, it is once and not in every process.
    yield run_cell(cells[0])
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            with _ctrl_c_held_back():
                futures = [pool.submit(run_cell, cell) for cell in cells[1:]]
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # Ctrl-C must not wait for the cells that are being played
            for process in active_children():
                process.terminate()
            raise  # the pool waits for its own thread, which would fail at the end of the process


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Start worker processes that leave Ctrl-C to this one, and start each of them whole.

    A terminal's Ctrl-C reaches every process; workers inherit the mask and so ignore it. The mask alone doesn't protect
    this process: another of its threads may take the signal, and the interrupt would leave a worker half started.
    """
    if threading.current_thread() is not threading.main_thread():  # Ctrl-C interrupts only the main thread
        yield
        return
    held_back = []
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):  # not if it is ignored, or was set by other than Python code
        signal.signal(signal.SIGINT, lambda *received: held_back.append(received))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
    if held_back and callable(handler):
        handler(*held_back[0])


@dataclass(frozen=True, slots=True)
class Ratio:
    """One policy over another in one cell of the map: the median over all seeds."""

    ratio: float | None  # None: one of the two is 0 for some seed
    low: float | None = None  # of the 95 % interval of the median; None: too few seeds
    high: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the difference is more than noise."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high

    @property
    def noise(self) -> bool:
        """Whether the interval contains 1; without an interval that is unknown."""
        return self.low is not None and not self.clear

    def better(self, less_is_better: bool) -> bool:
        """Whether the first policy is better by more than noise."""
        return self.clear and self.ratio is not None and (self.ratio < 1.0) == less_is_better


def ratios(
    rows: Sequence[Row], mix: str, load: float, congestion: float, policy: str, base: str, metric: str
) -> Ratio:
    """The ratio of two policies in a metric, with its interval over the seeds."""
    wanted = {"mix": mix, "load": load, "congestion": congestion}
    values: dict[str, dict[int, float]] = {policy: {}, base: {}}
    for row in rows:
        cell = row["cell"]
        if cell["policy"] in values and all(cell[name] == value for name, value in wanted.items()):
            values[cell["policy"]][cell["seed"]] = row["result"][metric]
    seeds = sorted(values[base])
    mine, other = (np.array([values[name][seed] for seed in seeds]) for name in (policy, base))
    if not has_ratios(mine, other):
        return Ratio(None)
    each = paired_ratios(mine, other)
    return Ratio(float(np.median(each)), *(median_interval(each) or ()))
