"""`make bench-plan`: how fast plans are evaluated, proven and learned, against the bars.

CPU time after kernels are loaded. A bar is met if the slowest instance meets it; rates by their median. The exit
code is 0 if every bar is met, else 1. plan_learner.py tells more of the learned searches, and of the others
beside them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from berth.cluster.load import load_cluster
from berth.plan.build import problem_for
from berth.plan.certificate import check
from berth.plan.evaluate import EXACT, NEWTON, Evaluator
from berth.plan.frontier import frontier
from berth.plan.problem import Problem
from berth.plan.profile import load_layer_profile
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.warm import load_kernels, load_list_kernels
from berth.report.terminal import console, print_json, table
from berth.testing.problems import random_problem
from plan_learner import MEDIAN, SECONDS, WORST, learned_rows

ZOO = ("ctrdnn", "matchnet", "2emb", "nce", "transformer", "cnn")


@dataclass(frozen=True, slots=True)
class Row:
    """One bar, and the figures of the instances tried."""

    what: str
    bar: str
    median: str
    spread: str
    met: bool


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds, and the result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def evaluations(repeats: int) -> list[Row]:
    rows = []
    draw = np.random.default_rng(0)
    plans = draw.integers(0, 4, (50_000, 16))
    problem = random_problem(16, 4, 0)
    for name, provisioning in (("exact units", EXACT), ("Newton", NEWTON)):
        rates = []
        for _ in range(repeats):
            evaluator = Evaluator(problem, provisioning=provisioning)
            seconds, _ = cpu(partial(evaluator, plans))
            rates.append(len(plans) / seconds)
        rows.append(
            Row(
                f"evaluations per CPU-s, L=16 T=4, {name}",
                ">= 200,000",
                f"{np.median(rates):,.0f}",
                f"{min(rates):,.0f}-{max(rates):,.0f}",
                float(np.median(rates)) >= 200_000,
            )
        )
    return rows


def proofs(name: str, bar_s: float, problems: list[Problem], most_gap: float = 1e-8) -> Row:
    """CPU seconds of the exact search; the gap must be closed, or below what is allowed."""
    seconds, gaps, wrong = [], [], []
    for problem in problems:
        outcome = exact(problem, Budget(seconds=60))
        if outcome.plan is None:
            continue
        seconds.append(outcome.cpu_s)
        gaps.append(1 - outcome.lower_bound_usd / outcome.plan.cost_usd)
        if len(problem.layers) <= 64:
            wrong += check(problem, outcome.plan, outcome.certificate)
    proven = max(gaps) <= most_gap and not wrong
    note = "" if max(gaps) <= 1e-8 else f", worst gap {max(gaps):.2%}"
    return Row(
        f"exact, {name} ({len(seconds)} problems)",
        f"<= {bar_s:g} s" + ("" if most_gap <= 1e-8 else f", gap <= {most_gap:.0%}"),
        f"{np.median(seconds):.3f} s",
        f"{min(seconds):.3f}-{max(seconds):.3f} s{note}" + (f", {len(wrong)} FALSE STEPS" if wrong else ""),
        proven and max(seconds) <= bar_s,
    )


def limited(layers: int, types: int, seed: int, throughput: float, limit: int) -> Problem:
    """Limits so low that they bind together."""
    problem = random_problem(layers, types, seed, throughput=throughput, limit=limit)
    return problem.with_limits({"t0": 6 * limit})


def frontiers(bar_s: float) -> Row:
    seconds, steps = [], []
    cluster = load_cluster("cloud-mix")
    for name in ZOO:
        problem = problem_for(load_layer_profile(name), cluster, throughput=1.0)
        taken, plans = cpu(partial(frontier, problem))
        seconds.append(taken)
        steps.append(len(plans))
    return Row(
        f"whole frontier of a zoo model on cloud-mix ({min(steps)}-{max(steps)} steps)",
        f"<= {bar_s:g} s",
        f"{np.median(seconds):.2f} s",
        f"{min(seconds):.2f}-{max(seconds):.2f} s",
        max(seconds) <= bar_s,
    )


def learning(seeds: int, processes: int) -> list[Row]:
    """rl-lstm against its bars, rl-rnn (one seed) reported beside it."""
    lstm, rnn = (
        learned_rows((name,), count, processes)[0] for name, count in (("rl-lstm", seeds), ("rl-rnn", 1))
    )
    made = []
    for row in (lstm, rnn):
        judged = row is lstm
        bar = f"<= {MEDIAN:.0%}, worst <= {WORST:.0%}" if judged else "reported"
        gaps = f"{row.gaps.min():.2%}-{row.gaps.max():.2%}"
        what = f"{row.name}, gap to the optimum, zoo x 2, 4, 8 types ({len(row.gaps)} runs)"
        near = bool(np.median(row.gaps) <= MEDIAN and row.gaps.max() <= WORST)
        made.append(Row(what, bar, f"{np.median(row.gaps):.2%}", gaps, near or not judged))
        times = f"{row.cpu_s.min():.1f}-{row.cpu_s.max():.1f} s"
        quick = bool(row.cpu_s.max() <= SECONDS)
        bar = f"<= {SECONDS:g} s" if judged else "reported"
        median = f"{np.median(row.cpu_s):.1f} s"
        made.append(Row(f"{row.name}, CPU time of a run", bar, median, times, quick or not judged))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="of the learned searches")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    load_kernels()
    load_list_kernels()
    seeds = range(given.seeds)
    rows = evaluations(given.seeds)
    rows.append(proofs("L=64 T=8", 0.1, [random_problem(64, 8, s, throughput=600) for s in seeds]))
    rows.append(proofs("L=16 T=64", 0.1, [random_problem(16, 64, s) for s in seeds]))
    wide = [random_problem(1000, 8, s, throughput=40, limit=10**6) for s in seeds]
    rows.append(proofs("L=1000 T=8", 2.0, wide))
    rows.append(proofs("L=20 T=4, limits bind", 5.0, [limited(20, 4, s, 2000, 12) for s in seeds]))
    rows.append(proofs("L=64 T=8, limits bind", 30.0, [limited(64, 8, s, 600, 5) for s in seeds], 0.01))
    rows.append(proofs("L=128 T=8, limits bind", 30.0, [limited(128, 8, s, 300, 6) for s in seeds], 0.01))
    rows.append(frontiers(2.0))
    rows += learning(given.seeds, given.processes)
    if given.json:
        print_json([asdict(row) for row in rows])
    else:
        lines = [[row.what, row.bar, row.median, row.spread, _word(row)] for row in rows]
        console().print(table("Planning", ["what", "bar", "median", "spread", ""], lines))
        missed = sum(not row.met for row in rows)
        console().print(f"{missed} of the bars missed" if missed else "every bar is met")
    return 0 if all(row.met for row in rows) else 1


def _word(row: Row) -> str:
    if row.bar == "reported":
        return "-"
    return "met" if row.met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
