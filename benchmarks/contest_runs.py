"""The runs behind `make bench-policies`: every policy on the same traces, cell by cell, kept on disk.

A cell is a workload at a load and a congestion, with what schedulers know of durations, and the share of jobs that can
be preempted. Generated jobs belong to users with durations of their own, so that there is something to learn;
Philly's belong to its real users. A finished run is a line in a file under the sources it depends on, so a sweep
that was stopped goes on, and after a change of one policy only that policy runs again.
"""

from __future__ import annotations

import hashlib
import heapq
import inspect
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import berth
from berth.arrays import FloatArray
from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.schedule.policies.registry import load_policy, policy_names
from berth.simulate.knowledge import Estimates
from berth.simulate.metrics import summarise
from berth.simulate.outcome import require_finished
from berth.simulate.run import Setting, simulate
from berth.workload.distributions import load_durations, load_sizes
from berth.workload.generate import GenerateSpec, generate
from berth.workload.mix import load_mix
from berth.workload.reading import read_trace
from berth.workload.streams import stream
from berth.workload.trace import Trace
from waiting_runs import philly_file

CLUSTER = "4x6x8:A100-40"
FIRST_SEED = 200  # the policy's constants were chosen while looking at smaller seeds
FIGURES = ("mean_jct_s", "p99_jct_s", "makespan_s", "evictions")
OWN = "berth"
MODES = ("no-wait", "full", "manual", "tuned")
BASELINES = (
    *(
        "fifo",
        "fit-first",
        "easy",
        "sjf",
        "srtf",
        "srsf",
        "required",
        "switches",
        "tiresias",
        "gittins",
        "gandiva",
    ),
    *("themis", "optimus", "lwf"),
    *(f"dally:mode={mode}" for mode in MODES),
)
KNOW_MORE = {"learned": ("gittins",), "none": ("gittins",)}  # its distribution is read from the whole trace
KNOWS: dict[str, tuple[Estimates, float]] = {
    "+-50 %": ("known", 0.5),
    "learned": ("learned", 0.0),
    "none": ("none", 0.0),
}
SHARES = (0.0, 0.5, 1.0)  # of jobs that can be preempted
POINTS = ((0.7, 5.0), (0.95, 1.0), (1.1, 5.0), (1.1, 20.0))  # load, congestion
PHILLY = "Philly slices"


@dataclass(frozen=True, slots=True)
class Workload:
    """What the jobs ask for; `between`: the part of the deviation of log durations that is between users."""

    sizes: str
    median: str
    deviation: float
    models: str
    jobs: int
    between: float = 0.7


WORKLOADS = {
    "powers of two": Workload("powers-of-two", "1h", 1.5, "balanced", 700),
    "odd sizes": Workload("odd", "1h", 1.5, "balanced", 700),
    "large gangs": Workload("large", "1h", 1.5, "balanced", 500),
    "insensitive": Workload("powers-of-two", "1h", 1.5, "insensitive", 700),
    "heavy tail": Workload("powers-of-two", "15m", 1.9, "balanced", 2500),
}
_USERS = 15
_PHILLY_JOBS = 800


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One point of the sweep."""

    workload: str
    load: float
    congestion: float
    knows: str
    preemptible: float


Results = dict[tuple[Cell, int], dict[str, list[float]]]


def cells(quick: bool = False, every_share: bool = False) -> list[Cell]:
    """All points; the shares of preemptible jobs take turns, unless every one is wanted in every cell.

    The quick sweep has two workloads, at a light and at a heavy load.
    """
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    points: tuple[tuple[float, float], ...] = POINTS
    at = [(0.8, 5.0), (1.1, 5.0)]
    if quick:
        workloads, points, at = ("odd sizes", "large gangs"), (POINTS[1], POINTS[2]), at[1:]
    found = list(product(workloads, points, KNOWS))
    if philly_file().exists():
        found += product((PHILLY,), at, KNOWS)
    made = []
    for workload, point, knows in found:
        turn = workloads.index(workload) if workload in workloads else 0
        turn += (points if workload in workloads else at).index(point) + tuple(KNOWS).index(knows)
        shares = SHARES if every_share else (SHARES[turn % len(SHARES)],)
        made += [Cell(workload, *point, knows, share) for share in shares]
    return made


def baselines(cell: Cell) -> tuple[str, ...]:
    """The policies that know no more than the cell says."""
    return tuple(name for name in BASELINES if name not in KNOW_MORE.get(cell.knows, ()))


@cache
def cluster() -> Cluster:
    """The cluster of all cells."""
    return load_cluster(CLUSTER)


@cache
def trace_of(workload: str, load: float, seed: int) -> Trace:
    """The jobs of a workload at a load."""
    if workload == PHILLY:
        return _philly_slice(load, seed)
    kind = WORKLOADS[workload]
    within = kind.deviation * (1.0 - kind.between**2) ** 0.5
    made = generate(
        GenerateSpec(
            jobs=kind.jobs,
            load=load,
            gpus=cluster().devices,
            sizes=load_sizes(kind.sizes),
            durations=load_durations(f"lognormal:{kind.median}:{within}"),
            users=_USERS,
            seed=seed,
        )
    )
    factors = np.exp(kind.deviation * kind.between * stream(seed, "users", 1).standard_normal(_USERS))
    names = {name: number for number, name in enumerate(sorted(set(made.frame["user"].to_list())))}
    by_user = np.array([factors[names[user]] for user in made.frame["user"].to_list()])
    return _at_load(made, made.duration_s * by_user, load)


def _at_load(trace: Trace, duration_s: FloatArray, load: float) -> Trace:
    """The trace with other durations, its submissions stretched to the load."""
    wanted_s = float(np.dot(trace.num_gpu.astype(float), duration_s)) / (cluster().devices * load)
    frame = trace.frame
    return Trace.from_columns(
        {
            "job_id": frame["job_id"],
            "submit_s": trace.submit_s * (wanted_s / trace.span_s),
            "num_gpu": frame["num_gpu"],
            "duration_s": duration_s,
            "user": frame["user"],
            "vc": frame["vc"],
        },
        source=trace.source,
    )


@cache
def _philly() -> Trace:
    trace = read_trace(philly_file())
    wanted = (trace.num_gpu > 1) & (trace.num_gpu <= 64) & (trace.duration_s <= 14 * 86400)
    return trace.keep(wanted, "gangs of up to 64 GPUs, up to two weeks")


def _philly_slice(load: float, seed: int) -> Trace:
    """Consecutive gangs from a place in the trace that the seed chooses."""
    jobs = _philly()
    first = int(stream(seed, "resampling").integers(0, len(jobs) - _PHILLY_JOBS))
    rows = np.zeros(len(jobs), bool)
    rows[first : first + _PHILLY_JOBS] = True
    part = jobs.keep(rows, "a slice")
    return _at_load(part, part.duration_s, load)


def run(cell: Cell, seed: int, policy: str) -> list[float]:
    """The figures of one policy on one trace."""
    estimates, error = KNOWS[cell.knows]
    models = "balanced" if cell.workload == PHILLY else WORKLOADS[cell.workload].models
    setting = Setting(
        congestion=cell.congestion,
        mix=load_mix(models),
        seed=seed,
        estimates=estimates,
        estimate_error=error,
        preemptible=cell.preemptible,
    )
    summary = summarise(
        require_finished(
            simulate(trace_of(cell.workload, cell.load, seed), cluster(), load_policy(policy), setting)
        )
    )
    assert summary.finished == summary.jobs, f"{policy} left jobs behind in {cell}, seed {seed}"
    return [float(getattr(summary, figure)) for figure in FIGURES]


def lower_bound_s(trace: Trace, gpus: int) -> float:
    """A mean completion time that no schedule is below: the larger of two relaxations.

    Every job runs alone, at once. Or: GPUs form one machine that does the GPU-seconds of one job at a time, which any
    schedule can be mapped to. There the least sum of mean busy times is that of the preemptive order by GPU-seconds
    (Goemans et al. 2002), and a job ends at least half its duration after its mean busy time.
    """
    service = trace.num_gpu * trace.duration_s / gpus
    order = np.lexsort((np.arange(len(trace)), trace.submit_s))
    waiting: list[tuple[float, int]] = []
    left, busy, now, at = service.copy(), np.zeros(len(trace)), 0.0, 0
    while at < len(order) or waiting:
        if not waiting:
            now = max(now, float(trace.submit_s[order[at]]))
        while at < len(order) and trace.submit_s[order[at]] <= now:
            heapq.heappush(waiting, (float(service[order[at]]), int(order[at])))
            at += 1
        job = waiting[0][1]
        until = now + left[job]
        if at < len(order):
            until = min(until, float(trace.submit_s[order[at]]))
        busy[job] += (until - now) * (now + until) / 2
        left[job] -= until - now
        now = until
        if left[job] <= 1e-9:
            heapq.heappop(waiting)
    squashed = busy / service - trace.submit_s + trace.duration_s / 2
    return max(float(trace.duration_s.mean()), float(squashed.mean()))


def sweep(
    wanted: list[Cell],
    seeds: range,
    policies: Callable[[Cell], tuple[str, ...]],
    folder: Path,
    workers: int,
    progress: Callable[[int, int], None],
) -> Results:
    """Every policy on every cell and seed, read from disk where it is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.jsonl"
    known = dict(_read(file))
    tasks = [(cell, seed, name) for cell in wanted for seed in seeds for name in policies(cell)]
    missing = [task for task in tasks if _key(*task) not in known]
    progress(len(tasks) - len(missing), len(tasks))
    with file.open("a", encoding="utf-8") as out:
        for number, (task, figures) in enumerate(_compute(missing, workers), 1):
            key = _key(*task)
            known[key] = figures
            about = {**asdict(task[0]), "seed": task[1], "policy": task[2]}
            out.write(json.dumps({"key": key, **about, "figures": figures}) + "\n")
            out.flush()
            if number % 50 == 0 or number == len(missing):
                progress(len(tasks) - len(missing) + number, len(tasks))
    results: Results = {}
    for cell, seed, name in tasks:
        results.setdefault((cell, seed), {})[name] = known[_key(cell, seed, name)]
    return results


Task = tuple[Cell, int, str]


def _compute(tasks: list[Task], workers: int) -> Iterator[tuple[Task, list[float]]]:
    if workers <= 1 or len(tasks) < 2:
        for task in tasks:
            yield task, run(*task)
        return
    yield tasks[0], run(*tasks[0])  # compiles once, before there are several that would
    # a forked child would inherit the locks of threads it does not have
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        rest = tasks[1:]
        yield from zip(rest, pool.map(_run, rest, chunksize=16), strict=True)


def _run(task: Task) -> list[float]:
    return run(*task)


def _read(file: Path) -> Iterator[tuple[str, list[float]]]:
    """Finished runs; a line that was cut short is run again."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
            yield row["key"], row["figures"]
        except (ValueError, KeyError):
            continue


def _key(cell: Cell, seed: int, policy: str) -> str:
    kind = WORKLOADS.get(cell.workload)
    facts = (
        _sources(),
        _policy_source(policy),
        asdict(cell),
        seed,
        policy,
        kind,
        CLUSTER,
        _USERS,
        _PHILLY_JOBS,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:20]


@cache
def _sources() -> str:
    """A name for all that every run depends on, without the files of the policies."""
    root, digest = Path(berth.__path__[0]), hashlib.sha256()
    own = {inspect.getsourcefile(type(load_policy(name))) for name in policy_names()}
    for package in ("cluster", "network", "schedule", "simulate", "workload"):
        for path in sorted((root / package).rglob("*.*")):
            if path.suffix in (".py", ".yaml") and str(path) not in own and path.name != "registry.py":
                digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _policy_source(policy: str) -> str:
    source = inspect.getsourcefile(type(load_policy(policy)))
    return hashlib.sha256(Path(source or "").read_bytes()).hexdigest()
