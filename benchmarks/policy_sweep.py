"""The sweep behind `make bench-policies`: cells of load x congestion x mix, each run on several seeds.

A cell's traces are the same for all contenders (paired seeds). What has been computed is on disk under
the fingerprint of everything it depends on, so that a sweep which was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.native.cache import fingerprint
from berth.schedule.policies.berth import Berth, Rank
from berth.schedule.policies.dally import Dally, Mode, Order
from berth.schedule.policy import Policy
from berth.simulate.metrics import summarise
from berth.simulate.outcome import require_finished
from berth.simulate.run import Setting, simulate
from berth.workload.distributions import load_durations, load_sizes
from berth.workload.generate import GenerateSpec, generate
from berth.workload.mix import load_mix
from berth.workload.trace import Trace

CLUSTER = "4x8x8:V100-16"
LOADS = (0.6, 0.8, 0.95, 1.1)
CONGESTIONS = (1.0, 5.0, 20.0)
OWN, UNSURE, DOUBT = "berth", "berth +-50%", 0.5
FIRST_SEED = 100  # the policy's constants were chosen while looking at smaller seeds
RANKS = (Rank.FIFO, Rank.LAS)
MODES = ("no-wait", "full", "manual", "tuned")
FIGURES = ("mean_jct_s", "p99_jct_s", "makespan_s")


@dataclass(frozen=True, slots=True)
class Kind:
    """What the jobs of a mix ask for."""

    sizes: str
    durations: str
    models: str
    jobs: int


_HOURS = "lognormal:1h:1.5"
MIXES = {
    "powers of two": Kind("powers-of-two", _HOURS, "balanced", 1200),
    "odd sizes": Kind("odd", _HOURS, "balanced", 1200),
    "large jobs": Kind("large", _HOURS, "balanced", 600),
    "insensitive": Kind("powers-of-two", _HOURS, "insensitive", 1200),
    "philly": Kind("philly", "philly", "balanced", 4000),
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One point of the sweep."""

    rank: Rank
    mix: str
    load: float
    congestion: float


Results = dict[tuple[Cell, int], dict[str, list[float]]]


def cells(quick: bool) -> list[Cell]:
    """All points; the quick sweep takes the corners of two mixes."""
    mixes = ("odd sizes", "large jobs") if quick else tuple(MIXES)
    loads = (0.8, 1.1) if quick else LOADS
    congestions = (1.0, 20.0) if quick else CONGESTIONS
    return [Cell(*point) for point in product(RANKS, mixes, loads, congestions)]


def contenders(rank: Rank) -> dict[str, tuple[Policy, float]]:
    """Policies at one job order, with how uncertain remaining times are to them.

    Under every contender a job that does not fit blocks no other job. At FIFO order no job is evicted.
    """
    own = Berth(order_by=rank)
    order = Order[rank.name]
    fixed: dict[str, tuple[Policy, float]] = {
        mode: (Dally(mode=Mode[mode.upper().replace("-", "_")], order_by=order), 0.0) for mode in MODES
    }
    return fixed | {OWN: (own, 0.0), UNSURE: (own, DOUBT)}


def run_cell(cell: Cell, seed: int) -> dict[str, list[float]]:
    """The figures of every contender on one trace."""
    kind = MIXES[cell.mix]
    found = {}
    for name, (policy, doubt) in contenders(cell.rank).items():
        setting = Setting(
            congestion=cell.congestion, mix=load_mix(kind.models), seed=seed, estimate_error=doubt
        )
        run = simulate(_trace(cell.mix, cell.load, seed), _cluster(), policy, setting)
        summary = summarise(require_finished(run))
        assert summary.finished == summary.jobs, f"{name} left jobs behind in {cell}, seed {seed}"
        found[name] = [float(getattr(summary, figure)) for figure in FIGURES]
    return found


@cache
def _cluster() -> Cluster:
    return load_cluster(CLUSTER)


@cache
def _trace(mix: str, load: float, seed: int) -> Trace:
    kind = MIXES[mix]
    return generate(
        GenerateSpec(
            jobs=kind.jobs,
            load=load,
            gpus=_cluster().devices,
            sizes=load_sizes(kind.sizes),
            durations=load_durations(kind.durations),
            seed=seed,
        )
    )


def sweep(
    wanted: Iterable[Cell], seeds: int, folder: Path, workers: int, progress: Callable[[int, int], None]
) -> Results:
    """Every cell on every seed, read from disk where it is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(cell, seed) for cell in wanted for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
    files = {task: folder / f"{_key(*task)}.json" for task in tasks}
    missing = [task for task in tasks if not files[task].exists()]
    done = len(tasks) - len(missing)
    progress(done, len(tasks))
    for task, found in _compute(missing, workers):
        files[task].write_text(json.dumps({"cell": str(task), "figures": found}), encoding="utf-8")
        done += 1
        progress(done, len(tasks))
    return {task: json.loads(files[task].read_text(encoding="utf-8"))["figures"] for task in tasks}


def _compute(
    tasks: list[tuple[Cell, int]], workers: int
) -> Iterator[tuple[tuple[Cell, int], dict[str, list[float]]]]:
    if not tasks:
        return
    yield tasks[0], run_cell(*tasks[0])  # compiles once, before there are several who would
    # a forked child would inherit the locks of threads it does not have
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        chunk = max(1, min(8, len(tasks) // (4 * workers)))
        rest = tasks[1:]
        yield from zip(rest, pool.map(_run, rest, chunksize=chunk), strict=True)


def _run(task: tuple[Cell, int]) -> dict[str, list[float]]:
    return run_cell(*task)


def _key(cell: Cell, seed: int) -> str:
    facts: list[Any] = [_sources(), repr(cell), repr(MIXES[cell.mix]), seed, CLUSTER, contenders(cell.rank)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


@cache
def _sources() -> str:
    """Everything the figures depend on: all of berth's sources."""
    import berth

    digest = hashlib.sha256(fingerprint().encode())
    for path in sorted(Path(berth.__path__[0]).rglob("*.py")):
        if "cli" not in path.parts and "report" not in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()
