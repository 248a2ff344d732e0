"""What refining a plan under another objective gains over the exact plan of the closed formula.

Per model of the zoo and pipeline: the exact plan with its own units in the simulation (`holds`: the share of
the wanted throughput that it reaches), the same assignment with units corrected, and the best assignment that
each search finds from there (its cost over the corrected exact plan's: median, least and most over the seeds).
Simulated figures are modelled. `--measure` adds one small measured case, emulated. CPU seconds throughout.

    python benchmarks/plan_objective.py --share 0.2 --seeds 3 --budget 1000 --measure
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from berth.plan.bench import MODELS, on_cluster
from berth.plan.evaluate import Evaluator
from berth.plan.infeasible import highest_throughput
from berth.plan.objective.refine import make_objective, refine
from berth.plan.objective.simulate import PipelineOptions, SimulatedObjective
from berth.plan.plan import Plan
from berth.plan.problem import Problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget

PIPELINES: dict[str, dict[str, Any]] = {
    "every batch waits": {},
    "every 4th waits": {"sync_every": 4, "most_micro_batches": 4},
    "none waits, 1 lane": {"schedule": "stream", "lanes": 1.0, "most_micro_batches": 1},
}
METHODS = ("genetic", "greedy", "rl-lstm", "random")
SPEED_ROWS = 1000


def main() -> None:
    """Prints the rate of evaluations and a line per model and pipeline."""
    asked = _arguments()
    print(
        f"{_speed():,.0f} evaluations per CPU-second (ctrdnn, 16 layers, 5 types, all feasible by the formula)\n"
    )
    print(
        f"{'model':12} {'pipeline':19} {'holds':>6} {'corrected':>10}  cost of the best / of the exact plan corrected"
    )
    for name in asked.models:
        problem = on_cluster(name, None)
        problem = problem.at(asked.share * highest_throughput(problem))
        plan = exact(problem, Budget()).plan
        assert plan is not None
        for label, options in PIPELINES.items():
            objective = make_objective("simulate", problem, profile=load_layer_profile(name), **options)
            assert isinstance(objective, SimulatedObjective)
            print(_line(name, label, problem, plan, objective, asked), flush=True)
    if asked.measure:
        _measured(asked.seeds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--share", type=float, default=0.2, help="of the highest throughput by the formula")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--measure", action="store_true")
    return parser.parse_args()


def _line(
    name: str,
    label: str,
    problem: Problem,
    plan: Plan,
    objective: SimulatedObjective,
    asked: argparse.Namespace,
) -> str:
    holds = objective.throughput_of(plan) / problem.throughput
    corrected = objective.evaluate(plan.assignment)
    head = f"{name:12} {label:19} {holds:6.2f} {corrected.cost_usd / plan.cost_usd:9.2f}x "
    return head + "  ".join(_ratios(method, problem, plan, objective, asked) for method in METHODS)


def _ratios(
    method: str, problem: Problem, plan: Plan, objective: SimulatedObjective, asked: argparse.Namespace
) -> str:
    ratios = []
    for seed in range(1 if method == "greedy" else asked.seeds):
        found = refine(problem, plan, objective, method, Budget(evaluations=asked.budget, seed=seed))
        if not found.best.feasible:
            return f"{method} none"
        if not found.start.feasible:
            return f"{method} holds (the start does not)"
        ratios.append(found.best.cost_usd / found.start.cost_usd)
    return f"{method} {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"


def _speed() -> float:
    problem = on_cluster("ctrdnn", None)
    problem = problem.at(0.1 * highest_throughput(problem))
    objective = SimulatedObjective(problem, PipelineOptions(), profile=load_layer_profile("ctrdnn"))
    drawn = AssignmentSpace(problem, np.random.default_rng(0)).random_runs(40 * SPEED_ROWS)
    rows = drawn[np.isfinite(Evaluator(problem)(drawn).cost_usd)][:SPEED_ROWS]
    objective(rows[:1])
    begun = time.process_time()
    objective(rows)
    return len(rows) / (time.process_time() - begun)


def _measured(seeds: int) -> None:
    """ctrdnn-8 on three types; genetic, 24 evaluations a seed, real runs of this machine."""
    problem = on_cluster("ctrdnn-8", ("cpu-core", "T4", "V100-16"))
    problem = problem.at(0.2 * highest_throughput(problem))
    plan = exact(problem, Budget()).plan
    assert plan is not None
    objective = make_objective(
        "measure", problem, profile=load_layer_profile("ctrdnn-8"), model="ctrdnn-8", batch=1024
    )
    try:
        for seed in range(seeds):
            begun = time.perf_counter()
            found = refine(problem, plan, objective, "genetic", Budget(evaluations=24, seed=seed))
            print(
                f"\nmeasured (emulated) ctrdnn-8, seed {seed}: formula {plan.cost_usd:.3f} $, start"
                f" {found.start.cost_usd:.3f} $, best {found.best.cost_usd:.3f} $, gain {found.gain},"
                f" {time.perf_counter() - begun:.0f} s\n  {found.best.note}"
            )
    finally:
        objective.close()


if __name__ == "__main__":
    main()
