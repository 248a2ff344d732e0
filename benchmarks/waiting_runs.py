"""The runs behind docs/waiting.md: slices of Philly at a wanted load, under every policy, kept on disk.

A slice is a run of consecutive jobs; its gaps between submissions are stretched until the work it brings is
the wanted share of what the cluster can do. Philly's jobs name no models: each slice draws its own from
the mix, by seed. A finished run is a line in the cache under the sources it depends on, so a study that was
stopped goes on, and after a change of one policy only that policy is played again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import berth
from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.metrics import summarise
from berth.simulate.outcome import require_finished
from berth.simulate.run import Setting, simulate
from berth.workload.mix import load_mix
from berth.workload.reading import read_trace
from berth.workload.trace import Trace

CLUSTER = "4x8x8:V100-16"
LOADS = (0.5, 0.8, 1.0, 1.2)
CONGESTIONS = (1.0, 5.0, 10.0, 50.0)
SLICES = 8
METRICS = ("mean_jct_s", "p99_jct_s", "makespan_s", "exposed_comm_gpu_s", "mean_wait_s")
FIRST_DAY = datetime(2017, 10, 1)  # before it the trace is thin

MODES = ("no-wait", "full", "manual", "tuned")
STEPS = {"wait": "order=fifo,mode={}", "order": "mode={},preempt=no", "preempt": "mode={}"}
BASELINES = (
    "fifo", "fit-first", "easy", "preferred", "required", "switches", "sjf", "srtf", "srsf", "tiresias",
    "gittins", "gandiva", "themis", "optimus", "lwf",
)  # fmt: skip
DEFAULT = "berth"
OWN = ("berth:order=fifo", "berth:order=network", "berth:order=las", DEFAULT)


def dally(mode: str, step: str = "preempt") -> str:
    """Dally with waiting alone, with its order, or with preemption too."""
    return "dally:" + STEPS[step].format(mode)


POLICIES = (*(dally(mode, step) for step in STEPS for mode in MODES), *BASELINES, *OWN)


@dataclass(frozen=True, slots=True)
class Workload:
    """Which of Philly's jobs are played, and what they train."""

    name: str
    about: str
    least_gpus: int
    jobs: int
    mix: str


WORKLOADS = (
    Workload("all jobs", "4,000 jobs as they came, nearly all with one GPU", 1, 4000, "balanced"),
    Workload("gangs", "600 jobs with two GPUs or more", 2, 600, "balanced"),
    Workload("gangs, insensitive", "the same, of models that distance hardly hurts", 2, 600, "insensitive"),
)


@dataclass(frozen=True, slots=True)
class Play:
    """One simulation."""

    workload: str
    load: float
    congestion: float
    part: int  # the slice, and the seed of its models
    policy: str


Figures = dict[Play, list[float]]


def plays() -> list[Play]:
    """All of them, trace by trace."""
    names = [workload.name for workload in WORKLOADS]
    return [Play(*point) for point in product(names, LOADS, CONGESTIONS, range(SLICES), POLICIES)]


def philly_file() -> Path:
    """Where the public trace lies beside a checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("BERTH_SHARED", beside)) / "traces" / "philly" / "philly.csv.xz"


def play_all(wanted: list[Play], folder: Path, report: Callable[[int, int, Play], None]) -> Figures:
    """Every run, read from the cache where it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "runs.jsonl"
    known = dict(_read(file))
    found: Figures = {}
    with file.open("a", encoding="utf-8") as out:
        if file.stat().st_size and not file.read_bytes().endswith(b"\n"):
            out.write("\n")
        for number, play in enumerate(wanted, 1):
            key = _key(play)
            if key not in known:
                known[key] = run(play)
                out.write(json.dumps({"key": key, **asdict(play), "figures": known[key]}) + "\n")
                out.flush()
            found[play] = known[key]
            report(number, len(wanted), play)
    return found


def run(play: Play) -> list[float]:
    """The figures of one simulation, in the order of METRICS."""
    workload = _workload(play)
    setting = Setting(congestion=play.congestion, mix=load_mix(workload.mix), seed=play.part)
    trace = slice_of(workload, play.part, play.load)
    run = simulate(trace, _cluster(), load_policy(play.policy), setting)
    summary = summarise(require_finished(run))
    return [float(getattr(summary, metric)) for metric in METRICS]


def _workload(play: Play) -> Workload:
    return next(one for one in WORKLOADS if one.name == play.workload)


@cache
def _cluster() -> Cluster:
    return load_cluster(CLUSTER)


@cache
def _philly() -> Trace:
    trace = read_trace(philly_file())
    assert trace.origin is not None
    begin_s = (FIRST_DAY - trace.origin.replace(tzinfo=None)).total_seconds()
    return trace.keep(trace.submit_s >= begin_s, f"from {FIRST_DAY:%Y-%m-%d} on")


@cache
def slice_of(workload: Workload, part: int, load: float) -> Trace:
    """The part-th of the slices that lie evenly in the trace, at a load."""
    jobs = _philly()
    rows = np.flatnonzero(jobs.num_gpu >= workload.least_gpus)
    first = part * (len(rows) - workload.jobs) // max(1, SLICES - 1)
    return at_load(jobs, rows[first : first + workload.jobs], load, _cluster().devices)


def at_load(jobs: Trace, rows: NDArray[np.intp], load: float, gpus: int) -> Trace:
    """These jobs, their submissions spread so that they bring `load` times what the GPUs can do meanwhile."""
    submit_s, num_gpu, duration_s = jobs.submit_s[rows], jobs.num_gpu[rows], jobs.duration_s[rows]
    wanted_s = float(np.dot(num_gpu.astype(np.float64), duration_s)) / (gpus * load)
    since_s = submit_s - submit_s[0]
    columns = {
        "job_id": [str(row) for row in rows],
        "submit_s": since_s * (wanted_s / since_s[-1]),
        "num_gpu": num_gpu,
        "duration_s": duration_s,
    }
    return Trace.from_columns(columns, source="philly")


def _read(file: Path) -> Iterator[tuple[str, list[float]]]:
    """Finished runs; a line that was cut short is played again."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
            yield row["key"], row["figures"]
        except (ValueError, KeyError):
            continue


def _key(play: Play) -> str:
    workload = _workload(play)
    jobs = (workload.least_gpus, workload.jobs, workload.mix, SLICES, CLUSTER)
    facts = (_sources(), _policy_source(play.policy), asdict(play), jobs)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:20]


_PACKAGES = ("cluster", "network", "schedule", "simulate", "workload")


@cache
def _sources() -> str:
    """A name for all that every run depends on, without the files of the policies."""
    root, digest = Path(berth.__path__[0]), hashlib.sha256()
    files: list[Path] = []
    for package in _PACKAGES:
        files += [path for path in sorted((root / package).rglob("*.*")) if path.suffix in (".py", ".yaml")]
    for path in files:
        if not _is_policy(path):
            digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _policy_source(policy: str) -> str:
    source = inspect.getsourcefile(type(load_policy(policy)))
    return hashlib.sha256(Path(source or "").read_bytes()).hexdigest()


@cache
def _is_policy(path: Path) -> bool:
    """Whether a file holds nothing but a policy, which only its own runs depend on."""
    own = {inspect.getsourcefile(type(load_policy(name))) for name in POLICIES}
    return str(path) in own or path.name == "registry.py"
