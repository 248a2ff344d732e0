"""Compares all methods on the same problems and budget: by model, by number of layers, by number of types.

The problems are the zoo's profiles (CPU core measured, GPUs modelled) with tables of a billion rows, at a share of the
highest throughput that their devices can hold: near it few plans are feasible. Beyond the catalogue's devices, types
are synthetic variants with random speed and price. `compare_methods` does the same for one problem of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from berth.cluster.load import load_cluster
from berth.plan.infeasible import highest_throughput
from berth.plan.plan import Plan
from berth.plan.problem import COMPUTE, EXCHANGE, IN, OPTIMISER_S, OUT, DevicePool, Problem, make_problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.fixed import cpu_types
from berth.plan.search.method import METHODS, RANDOMISED, Budget, Outcome, canonical_name, get_method
from berth.plan.world import WorldOptions
from berth.plan.world_problem import problem_for

SHARE = 0.8  # of the highest throughput
DEVICES_PER_TYPE = 64  # GPUs of each type, where the number of types is what varies
CORES_PER_TYPE = 48 * DEVICES_PER_TYPE
ROWS = 1e9  # of all tables of a model
CLUSTER = "cloud-mix"
MODELS = ("ctrdnn", "matchnet", "2emb", "nce", "transformer", "cnn")
BY_LAYERS = ("ctrdnn-8", "ctrdnn-12", "ctrdnn", "ctrdnn-20")
BY_TYPES = (2, 4, 8, 16, 32, 64)
_BASE = (
    "cpu-core", "V100-16", "T4", "A100-80", "L4", "H100", "A100-40", "L40S", "P100", "V100-32", "H200", "P4", "B200",
)  # fmt: skip
OWN = "problem"  # group of a problem of the user's


@dataclass(frozen=True)
class Case:
    """One problem of the comparison."""

    group: str  # models, layers or types; or the user's own problem
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
    note: str = ""  # of the method; without a plan, why
    plan: Plan | None = None  # the cheapest of all seeds


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
    return problem_for(
        load_layer_profile(model), cluster, 1.0, forbid=forbid, options=WorldOptions(rows=ROWS)
    )


def with_types(model: str, count: int, seed: int = 0) -> Problem:
    """Return the problem of a model on `count` types: the catalogue's first, then synthetic variants."""
    names = _BASE[: min(count, len(_BASE))]
    base = problem_for(load_layer_profile(model), names, 1.0, options=WorldOptions(rows=ROWS))
    cores = cpu_types(base)[0]
    limits = [CORES_PER_TYPE if device in cores else DEVICES_PER_TYPE for device in range(len(base.types))]
    base = base.with_limits(dict(zip(base.type_names, limits, strict=True)))
    rng = np.random.default_rng(seed)
    variants = []
    for number in range(count - len(base.types)):
        of, copy = number % len(base.types), number // len(base.types) + 1
        variants.append(Variant(of, f"~{copy}", rng.uniform(0.6, 1.6), rng.uniform(0.8, 1.25)))
    return with_variants(base, variants)


@dataclass(frozen=True, slots=True)
class Variant:
    """A synthetic type: `speed` times as fast as an existing one, in computing and in moving data."""

    of: int  # index of the existing type
    suffix: str
    speed: float = 1.0
    markup: float = 1.0  # on its price for this speed


def with_variants(problem: Problem, variants: Sequence[Variant]) -> Problem:
    """Return the problem with more types, each a variant of one it has; it is no longer that of a cluster."""
    rows = list(range(len(problem.choices)))
    speeds, choices = [1.0] * len(rows), list(problem.choices)
    for number, one in enumerate(variants):
        for row, choice in enumerate(problem.choices):
            if choice.device == one.of:
                rows.append(row)
                speeds.append(one.speed)
                choices.append(replace(choice, device=len(problem.types) + number))
    speed, columns = np.array(speeds), [*range(len(problem.types)), *(one.of for one in variants)]
    curves, facts = problem.curves[rows].copy(), problem.facts[rows].copy()
    curves[:, :, (COMPUTE, IN, OUT, EXCHANGE)] /= speed[:, None, None, None]
    facts[:, :, OPTIMISER_S] /= speed[:, None]
    by_type = np.array([*[1.0] * len(problem.types), *(one.speed for one in variants)])
    return replace(
        problem,
        types=(*problem.types, *(_variant_pool(problem.types[one.of], one) for one in variants)),
        allowed=problem.allowed[:, columns],
        choices=tuple(choices),
        curves=curves,
        facts=facts,
        cross=problem.cross[rows] / speed[:, None, None],
        message=problem.arrays.message[rows],
        ring=problem.ring[columns] / by_type[:, None, None],
        stated=None,
        source=None,
    )


def _variant_pool(pool: DevicePool, one: Variant) -> DevicePool:
    price = pool.usd_per_hour * one.speed * one.markup
    return replace(pool, name=pool.name + one.suffix, usd_per_hour=price)


def compare_methods(
    problem: Problem,
    budget: Budget,
    methods: Sequence[str] | None = None,
    seeds: int = 1,
    report: Report | None = None,
) -> list[Result]:
    """Run methods (default: all; `exact` is always among them) on one problem, each with the same budget."""
    names = dict.fromkeys(
        canonical_name(name) for name in ["exact", *(METHODS if methods is None else methods)]
    )
    case = Case(OWN, "this problem", len(problem.layers), problem)
    return compare([case], list(names), budget, seeds, report)


def compare(
    which: Sequence[Case],
    methods: Sequence[str],
    budget: Budget,
    seeds: int = 3,
    report: Report | None = None,
) -> list[Result]:
    """Run every method on every case; loading on first use is not counted."""
    for name in methods:
        get_method(name)(_tiny_problem(), Budget(evaluations=40, seconds=5.0))
    results = []
    for case in which:
        for name in methods:
            if report:
                report(f"{case.group} {case.label}: {name}")
            results.append(_result(case, name, budget, seeds))
    return results


def _tiny_problem() -> Problem:
    types = (DevicePool("cpu", 1.0), DevicePool("gpu", 2.0))
    return make_problem(
        batch=1, throughput=1, types=types, layers=("a", "b"), oct_s=1.0, odt_s=1.0, alpha=1.0, beta=1.0
    )


def _result(case: Case, name: str, budget: Budget, seeds: int) -> Result:
    search = get_method(name)
    drawn = range(budget.seed, budget.seed + (seeds if name in RANDOMISED else 1))
    runs = [search(case.problem, replace(budget, seed=seed)) for seed in drawn]
    plans = [run.plan for run in runs if run.plan]
    costs = [plan.cost_usd for plan in plans]
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
        note=_note(runs),
        plan=min(plans, key=lambda plan: plan.cost_usd, default=None),
    )


def _note(runs: Sequence[Outcome]) -> str:
    """Return the note of the first run without a plan, if there is one; it says why there is none."""
    failed = next((run for run in runs if run.plan is None), None)
    if failed is None:
        return runs[0].note
    return failed.note or f"no plan that holds the throughput in {failed.evaluations:,} evaluations"
