"""`make bench-plan`: how fast plans are evaluated and proven, against the bars.

CPU time after kernels are loaded. A bar is met if the slowest instance meets it; rates by their median. The exit
code is 0 if every bar is met, else 1. The learned searches are measured by plan_learned.py.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from berth.cluster.load import load_cluster
from berth.plan.bench import ROWS
from berth.plan.certificate import check
from berth.plan.evaluate import Evaluator
from berth.plan.frontier import frontier
from berth.plan.problem import Problem
from berth.plan.profile.files import load_layer_profile
from berth.plan.search.assignments import AssignmentSpace
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.warmup import load_kernels
from berth.plan.world import WorldOptions
from berth.plan.world_problem import problem_for
from random_problems import random_problem
from results import Bar, Figure, figure, finish, options, progress

ZOO = ("ctrdnn", "matchnet", "2emb", "nce", "transformer", "cnn")
PROVEN = "Optima proven"


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds, and the result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def evaluations(repeats: int) -> list[Figure]:
    """Assignments evaluated with all that is chosen inside: cuts, tables, micro-batches and counts."""
    return [
        _evaluated("stated, L=16 T=4", random_problem(16, 4, 0), 2000, repeats, 3000),
        _evaluated("ctrdnn at 1M/s on cloud-mix, sync", _ctrdnn("sync"), 200, repeats, 150),
        _evaluated("ctrdnn at 1M/s on cloud-mix, async", _ctrdnn("async"), 200, repeats, 400),
    ]


def _ctrdnn(mode: str) -> Problem:
    options = WorldOptions(mode=mode, rows=ROWS)
    return problem_for(load_layer_profile("ctrdnn"), load_cluster("cloud-mix"), 1e6, options=options)


def _evaluated(name: str, problem: Problem, count: int, repeats: int, bar: float) -> Figure:
    rates = []
    for seed in range(repeats):
        space = AssignmentSpace(problem, np.random.default_rng(seed))
        plans = np.concatenate([space.random_runs(count // 2), space.random_uniform(count - count // 2)])
        seconds, _ = cpu(partial(Evaluator(problem), plans))
        rates.append(count / seconds)
    return figure("Plans evaluated", name, "/CPU-s", rates, at_least={"median": bar})


def proofs(name: str, bar_s: float, problems: list[Problem], most_gap: float = 1e-8) -> Figure:
    """CPU seconds of the exact search; the gap must be closed, or below what is allowed."""
    progress(f"exact, {name}")
    seconds, gaps, failed = [], [], 0
    for problem in problems:
        outcome = exact(problem, Budget(seconds=60))
        if outcome.plan is None:
            continue
        seconds.append(outcome.cpu_s)
        gaps.append(1 - outcome.lower_bound_usd / outcome.plan.cost_usd)
        checked = len(problem.layers) <= 64
        wrong = checked and check(problem, outcome.plan, outcome.certificate)
        failed += bool(gaps[-1] > most_gap or wrong)
    close = max(gaps) <= 1e-8
    note = f"{len(seconds)} problems" + ("" if close else f", gap at most {max(gaps):.2%}")
    not_proven = Bar(0, failed, "not proven" + ("" if most_gap <= 1e-8 else f" to {most_gap:.0%}"))
    bars = {"most": bar_s}
    return figure(PROVEN, f"exact, {name}", "CPU-s", seconds, at_most=bars, also=[not_proven], note=note)


def limited(layers: int, types: int, seed: int, throughput: float, limit: int) -> Problem:
    """Limits so low that they bind together."""
    problem = random_problem(layers, types, seed, throughput=throughput, limit=limit)
    return problem.with_limits({"t0": 6 * limit})


def frontiers(bar_s: float) -> Figure:
    seconds, steps = [], []
    cluster = load_cluster("cloud-mix")
    for name in ZOO:
        problem = problem_for(load_layer_profile(name), cluster, 1.0, options=WorldOptions(rows=ROWS))
        taken, plans = cpu(partial(frontier, problem))
        seconds.append(taken)
        steps.append(len(plans))
    what, note = "whole frontier of a zoo model on cloud-mix", f"{min(steps)}-{max(steps)} steps"
    return figure(PROVEN, what, "CPU-s", seconds, at_most={"most": bar_s}, note=note)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    load_kernels()
    seeds = range(given.seeds)
    found = evaluations(given.seeds)
    found.append(proofs("L=64 T=8", 0.3, [random_problem(64, 8, s, throughput=600) for s in seeds]))
    found.append(proofs("L=16 T=64", 0.1, [random_problem(16, 64, s) for s in seeds]))
    wide = [random_problem(1000, 8, s, throughput=40, limit=10**6) for s in seeds]
    found.append(proofs("L=1000 T=8", 2.0, wide))
    found.append(proofs("L=20 T=4, limits bind", 5.0, [limited(20, 4, s, 2000, 12) for s in seeds]))
    found.append(proofs("L=64 T=8, limits bind", 3.0, [limited(64, 8, s, 600, 5) for s in seeds], 0.01))
    found.append(proofs("L=128 T=8, limits bind", 30.0, [limited(128, 8, s, 300, 6) for s in seeds], 0.01))
    found.append(frontiers(1.0))
    return finish("plan", found, given.results)


if __name__ == "__main__":
    sys.exit(main())
