"""Compares all methods on the same problems and budget: by model, by number of layers, by number of types.

The problems are the zoo's profiles (CPU core measured, GPUs modelled) at a share of the highest throughput that their
devices can hold. At half of it a single type is nearly always the cheapest, and every method finds it; from 80 % on
mixes are cheaper and the methods differ. Beyond the catalogue's devices, types are synthetic variants with random
speed and price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from berth.cluster.load import load_cluster
from berth.plan.build import problem_for
from berth.plan.infeasible import highest_throughput
from berth.plan.problem import DevicePool, Problem, make_problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.method import Budget, get_method

SHARE = 0.8  # of the highest throughput
DEVICES_PER_TYPE = 64  # of each type, where the number of types is what varies
CLUSTER = "cloud-mix"
MODELS = ("ctrdnn", "matchnet", "2emb", "nce", "transformer", "cnn")
BY_LAYERS = ("ctrdnn-8", "ctrdnn-12", "ctrdnn", "ctrdnn-20")
BY_TYPES = (2, 4, 8, 16, 32, 64)
_BASE = (
    "cpu-core", "V100-16", "T4", "A100-80", "L4", "H100", "A100-40", "L40S", "P100", "V100-32", "H200", "P4", "B200",
)  # fmt: skip
_RANDOMISED = {"rl-lstm", "rl-rnn", "bayes", "genetic", "random"}


@dataclass(frozen=True)
class Case:
    """One problem of the comparison."""

    group: str  # models, layers or types
    label: str
    size: int  # layers or types, whichever the group is about
    problem: Problem


@dataclass(frozen=True)
class Result:
    """One method on one case, over its seeds."""

    case: Case
    method: str
    cost_usd: float | None  # the median; None: some seed found no plan
    worst_usd: float | None
    found: int  # seeds with a plan
    seeds: int
    evaluations: int
    cpu_s: float
    note: str = ""


Report = Callable[[str], None]


def cases(*, quick: bool = False, share: float = SHARE, only: str | None = None) -> Iterator[Case]:
    """Yield all problems, or those of one group."""
    every = 2 if quick else 1
    if only in (None, "models"):
        for name in MODELS[:3] if quick else MODELS:
            yield _case("models", name, on_cluster(name, None), share)
    if only in (None, "layers"):
        for name in BY_LAYERS[::every]:
            problem = on_cluster(name, None)
            yield _case("layers", str(len(problem.layers)), problem, share)
    if only in (None, "types"):
        for count in BY_TYPES[::every]:
            yield _case("types", str(count), with_types("ctrdnn", count), share)


def _case(group: str, label: str, problem: Problem, share: float) -> Case:
    size = len(problem.types) if group == "types" else len(problem.layers)
    return Case(group, label, size, problem.at(share * highest_throughput(problem)))


def on_cluster(model: str, devices: Sequence[str] | None) -> Problem:
    """Return the problem of a zoo model on the cluster, or on some of its types."""
    cluster = load_cluster(CLUSTER)
    names = [device.name for device in cluster.device_types]
    forbid = [name for name in names if devices is not None and name not in devices]
    return problem_for(load_layer_profile(model), cluster, 1.0, forbid=forbid)


def with_types(model: str, count: int, seed: int = 0) -> Problem:
    """Return the problem of a model on `count` types: the catalogue's first, then synthetic variants."""
    base = problem_for(load_layer_profile(model), _BASE[: min(count, len(_BASE))], 1.0)
    types = [replace(one, limit=DEVICES_PER_TYPE) for one in base.types]
    rng = np.random.default_rng(seed)
    columns = list(range(len(types)))
    speeds = [1.0] * len(types)
    for number in range(count - len(types)):
        of = number % len(base.types)
        speed, markup = rng.uniform(0.6, 1.6), rng.uniform(0.8, 1.25)
        columns.append(of)
        speeds.append(speed)
        original = base.types[of]
        name = f"{original.name}~{number // len(base.types) + 1}"
        types.append(
            DevicePool(name, original.usd_per_hour * speed * markup, DEVICES_PER_TYPE, original.memory_bytes)
        )
    return make_problem(
        batch=base.batch,
        throughput=base.throughput,
        samples=base.samples,
        types=tuple(types),
        layers=base.layers,
        kinds=base.kinds,
        oct_s=base.oct_s[:, columns] / np.array(speeds),
        odt_s=base.odt_s[:, columns] / np.array(speeds),
        alpha=base.alpha[:, columns],
        beta=base.beta[:, columns],
        cross_s=base.cross_s,
        replicated_bytes=base.replicated_bytes,
        fixed_usd_per_hour=base.fixed_usd_per_hour,
    )


def compare(
    which: Sequence[Case],
    methods: Sequence[str],
    budget: Budget,
    seeds: int = 3,
    report: Report | None = None,
) -> list[Result]:
    """Run every method on every case; loading on first use is not counted."""
    for name in methods:
        get_method(name)(which[0].problem, Budget(evaluations=1))
    results = []
    for case in which:
        for name in methods:
            if report:
                report(f"{case.group} {case.label}: {name}")
            results.append(_result(case, name, budget, seeds))
    return results


def _result(case: Case, name: str, budget: Budget, seeds: int) -> Result:
    search = get_method(name)
    drawn = range(budget.seed, budget.seed + (seeds if name in _RANDOMISED else 1))
    runs = [search(case.problem, replace(budget, seed=seed)) for seed in drawn]
    costs = [run.plan.cost_usd for run in runs if run.plan]
    complete = len(costs) == len(runs)
    return Result(
        case=case,
        method=name,
        cost_usd=median(costs) if complete else None,
        worst_usd=max(costs) if complete else None,
        found=len(costs),
        seeds=len(runs),
        evaluations=round(median(run.evaluations for run in runs)),
        cpu_s=median(run.cpu_s for run in runs),
        note=runs[0].note,
    )
