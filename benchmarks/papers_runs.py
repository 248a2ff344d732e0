"""The runs behind docs/papers.md: schedulers by the shape of Dally's experiments, planners by that of HeterPS'.

Simulations go through `berth.simulate.sweep`: a finished run is a line in a file under the code it depends on, so a
study that was stopped goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from berth.native.cache import fingerprint
from berth.plan.bench import Case, cases, compare
from berth.plan.search.method import Budget
from berth.simulate.intervals import FEWEST_SEEDS
from berth.simulate.sweep import AT_ONCE, Cell, Grid, sweep
from message_gate import GATES, JOBS, mean_jct_s

VARIANTS_FILE = Path(__file__).resolve().parent / "dally_variants.py"
DEVICE = "V100-16"
JOBS_PER_RACK = 200
LOAD = 0.9
RACKS = (1, 2, 4, 8)
CONGESTIONS = (1.0, 10.0, 100.0)
ARRIVALS = {"batch": ("at-once", AT_ONCE), "poisson": ("poisson", LOAD)}
METRICS = ("makespan_s", "mean_jct_s", "p95_jct_s", "p99_jct_s", "mean_comm_s")

MODES = {f"dally, {mode}": f"dally:mode={mode}" for mode in ("no-wait", "full", "manual", "tuned")}
OTHERS = (
    "tiresias", "gandiva", "themis", "optimus", "lwf", "srtf", "fit-first", "easy", "required", "switches", "berth",
)  # fmt: skip
SCHEDULERS = MODES | {name: name for name in OTHERS}
READINGS = {
    "from arrival (default)": "dally",
    "from the first offer": f"{VARIANTS_FILE}:OfferClock",
    "fresh jobs at nearest": f"{VARIANTS_FILE}:FreshNearest",
}
VARIANTS = {
    f"{mode}, {name}": f"{policy}:mode={mode}"
    for mode in ("manual", "tuned")
    for name, policy in READINGS.items()
}
LWF = {f"ratio {ratio:g}": f"lwf:ratio={ratio:g}" for ratio in (0.0, 0.25, 0.5, 1.0, 1000.0)}

PENALTIES = (0.0, 0.25, 1.0)  # e / b of message by message
SCATTERED = (1, 2, 4, 16)  # k
SCATTER_GATE, SCATTER_PENALTY = "Ada-SRSF", 0.25

MODELS = ("ctrdnn", "matchnet", "2emb", "nce")
SHARE = 0.01  # of the highest throughput that the devices can hold: every method finds plans there
METHODS = (
    "exact", "reinforce-lstm", "reinforce-rnn", "berth-lstm", "bayes", "genetic", "greedy", "brute", "heuristic",
    "cpu-only", "gpu-only", "static-cpu-gpu", "static-servers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of the study is run."""

    seeds: int = FEWEST_SEEDS
    racks: tuple[int, ...] = RACKS
    congestions: tuple[float, ...] = CONGESTIONS
    jobs_per_rack: int = JOBS_PER_RACK
    plan_s: float = 0.5
    message_seeds: int = 12
    message_jobs: int = JOBS
    quick: bool = False


FULL = Scale()
QUICK = Scale(
    seeds=1,
    racks=(1,),
    congestions=(10.0,),
    jobs_per_rack=20,
    plan_s=0.05,
    message_seeds=1,
    message_jobs=8,
    quick=True,
)


@dataclass(frozen=True, slots=True)
class Point:
    """One policy in one cell of a section: a figure of each metric for each seed."""

    section: str
    arrivals: str
    racks: int
    congestion: float
    policy: str
    values: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One method on one problem; `ratio` is its cost over that of `exact`."""

    group: str
    label: str
    method: str
    ratio: float | None  # None: no plan
    cost_usd: float | None
    cpu_s: float
    evaluations: int


@dataclass(frozen=True, slots=True)
class MessagePoint:
    """One gate of all-reduces: the mean completion time for each seed."""

    gate: str
    penalty: float  # e / b
    k: int
    mean_jct_s: list[float]


def sections(scale: Scale) -> Iterator[tuple[str, dict[str, str], Scale]]:
    """(name, policies by label, scale) of each part of the scheduling study."""
    yield "schedulers", SCHEDULERS, scale
    large = replace(scale, racks=scale.racks[-2:-1] or scale.racks)
    yield "variants", VARIANTS, large
    yield "lwf", LWF, large


def simulations(
    scale: Scale, file: Path, progress: Callable[[int, int], None] | None = None
) -> tuple[list[Point], float]:
    """Run, or read from the file, every simulation of the study; also return the CPU seconds of the engine."""
    wanted: list[tuple[tuple[str, str, int, float, str], list[Cell]]] = []
    for section, policies, part in sections(scale):
        for arrivals in ARRIVALS:
            for racks in part.racks:
                wanted += _points(section, policies, part, arrivals, racks)
    rows = iter(sweep([cell for _, cells in wanted for cell in cells], file, progress=progress))
    found, engine_s = [], 0.0
    for names, cells in wanted:
        results = [next(rows)["result"] for _ in cells]
        values = {metric: [round(one[metric], 1) for one in results] for metric in METRICS}
        found.append(Point(*names, values))
        engine_s += sum(one["cpu_s"] for one in results)
    return found, engine_s


def _points(
    section: str, policies: dict[str, str], scale: Scale, arrivals: str, racks: int
) -> list[tuple[tuple[str, str, int, float, str], list[Cell]]]:
    kind, load = ARRIVALS[arrivals]
    grid = Grid(
        cluster=f"{racks}x8x8:{DEVICE}",
        policies=tuple(policies.values()),
        loads=(load,),
        congestions=scale.congestions,
        mixes=("balanced",),
        seeds=scale.seeds,
        jobs=scale.jobs_per_rack * racks,
        arrivals=kind,
    )
    cells = grid.cells()
    return [
        (
            (section, arrivals, racks, congestion, label),
            [cell for cell in cells if cell.policy == text and cell.congestion == congestion],
        )
        for label, text in policies.items()
        for congestion in scale.congestions
    ]


def messages(scale: Scale) -> list[MessagePoint]:
    """Run every gate under every penalty, and one of them with gangs that are scattered."""
    cases = [(gate, penalty, 1) for penalty in PENALTIES for gate in GATES]
    cases += [(SCATTER_GATE, SCATTER_PENALTY, k) for k in SCATTERED if k > 1]
    return [
        MessagePoint(
            *(gate, penalty, k),
            [
                round(mean_jct_s(gate, seed, penalty, k, scale.message_jobs), 1)
                for seed in range(scale.message_seeds)
            ],
        )
        for gate, penalty, k in cases
    ]


def plans(scale: Scale, file: Path) -> list[PlanPoint]:
    """Run every method of planning on every problem; finished problems are kept in the file, by the planner's code."""
    code = f"{fingerprint('plan')} {scale.plan_s:g} {SHARE:g} {' '.join(METHODS)}"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {(one["code"], one["group"], one["label"]): one["points"] for one in map(json.loads, lines)}
    found: list[PlanPoint] = []
    for case in problems(scale):
        name = (code, case.group, case.label)
        if name not in known:
            known[name] = as_data(_searches(case, Budget(evaluations=1600, seconds=scale.plan_s)))
            line = {"code": code, "group": case.group, "label": case.label, "points": known[name]}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
        found += [PlanPoint(**one) for one in known[name]]
    return found


def _searches(case: Case, budget: Budget) -> list[PlanPoint]:
    results = compare([case], METHODS, budget, seeds=1)
    best = next(one.cost_usd for one in results if one.method == "exact")
    return [
        PlanPoint(
            group=case.group,
            label=case.label,
            method=one.method,
            ratio=None if one.cost_usd is None or best is None else round(one.cost_usd / best, 4),
            cost_usd=None if one.cost_usd is None else round(one.cost_usd, 4),
            cpu_s=round(one.cpu_s, 3),
            evaluations=one.evaluations,
        )
        for one in results
    ]


def problems(scale: Scale) -> Iterator[Case]:
    """Four models, layers from 8 to 20, types from 2 to 64; the quick study takes one of each."""
    for group in ("models", "layers", "types"):
        every = cases(only=group, share=SHARE)
        for number, case in enumerate(every):
            if scale.quick and number:
                break
            if group != "models" or case.label in MODELS:
                yield case


def as_data(points: Sequence[Point | PlanPoint | MessagePoint]) -> list[dict[str, Any]]:
    """Plain data."""
    return [asdict(point) for point in points]
