"""`make bench-policies`: is berth's default the policy to choose, whatever is known of the jobs?

    python benchmarks/contest.py [--quick] [--cells] [--seeds 5]

Every policy on the same traces: workload x load x congestion, with remaining times known to +-50 %, learned from jobs
that have ended, or not known at all, and with no, half or all jobs preemptible. Baselines get the same estimates.
In each cell berth is compared with the best baseline there, by mean completion time, and over all cells with the
best single baseline. A cell in which the interval of its seeds includes the bar is decided by more of them, whether its
mean is below or above. Also printed: the distance to a lower bound that no schedule is below. Exits with 1 if a
bar is missed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.report.terminal import console, table
from contest_runs import (
    CLUSTER,
    FIRST_SEED,
    KNOWS,
    OWN,
    PHILLY,
    SHARES,
    Cell,
    Results,
    baselines,
    cells,
    cluster,
    lower_bound_s,
    sweep,
    trace_of,
)
from policies import Ratio
from results import Bar, Figure, figure, finish, options, show

WITHIN, BETTER_BY, P99_WITHIN, MAKESPAN_WITHIN = 0.02, 0.10, 0.05, 0.02
MORE_SEEDS = 25  # where fewer do not decide
MEAN, P99, MAKESPAN = 0, 1, 2
_ON_AVERAGE = (
    ("mean JCT", 1 - BETTER_BY),
    ("p99 of JCT", 1 + P99_WITHIN),
    ("makespan", 1 + MAKESPAN_WITHIN),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """One cell: the best baseline there, and berth against it and against the best in each figure."""

    cell: Cell
    best: str
    mean_jct: Ratio  # against the best baseline of the cell
    p99: Ratio
    makespan: Ratio
    least_p99: float  # against the baseline with the least p99, whichever that is
    least_makespan: float
    above_bound: float  # mean JCT over the lower bound


def figures_of(results: Results, cell: Cell, seeds: range) -> dict[str, NDArray[np.float64]]:
    """[seed, figure] of each policy in a cell."""
    runs = [results[cell, seed] for seed in seeds]
    return {name: np.array([run[name] for run in runs]) for name in runs[0]}


def geometric(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def judge(results: Results, cell: Cell, seeds: range, own: str = OWN) -> Judged:
    """Berth in one cell."""
    figures = figures_of(results, cell, seeds)
    others = baselines(cell)

    def least(at: int) -> str:
        return min(others, key=lambda name: geometric(figures[name][:, at]))

    best = least(MEAN)
    ratios = [Ratio.of(figures[own][:, at], figures[best][:, at]) for at in (MEAN, P99, MAKESPAN)]
    farthest = [
        geometric(figures[own][:, at]) / geometric(figures[least(at)][:, at]) for at in (P99, MAKESPAN)
    ]
    bounds = [lower_bound_s(trace_of(cell.workload, cell.load, seed), cluster().devices) for seed in seeds]
    return Judged(
        cell,
        best,
        mean_jct=ratios[0],
        p99=ratios[1],
        makespan=ratios[2],
        least_p99=farthest[0],
        least_makespan=farthest[1],
        above_bound=geometric(figures[own][:, MEAN] / np.array(bounds)),
    )


def undecided(judged: Sequence[Judged]) -> list[Cell]:
    """The cells in which the interval of the mean JCT includes its bar."""
    return [one.cell for one in judged if one.mean_jct.low <= 1 + WITHIN <= one.mean_jct.high]


def best_single(results: Results, wanted: Sequence[Cell], seeds: range, at: int) -> tuple[str, float]:
    """The baseline with the least of a figure over all cells, of those that know no more, and berth's ratio to it."""
    names = set.intersection(*(set(baselines(cell)) for cell in wanted))
    runs = [results[cell, seed] for cell in wanted for seed in seeds]
    over = {name: geometric([run[OWN][at] / run[name][at] for run in runs]) for name in names}
    name = max(over, key=lambda one: over[one])
    return name, over[name]


def clauses(title: str, judged: Sequence[Judged], singles: Sequence[tuple[str, float]]) -> list[Figure]:
    """What is promised over some cells: ratios, each with its bar.

    Beside the best baseline of each cell by mean JCT, beside the single baseline that is best in a figure over all
    cells, and, for p99 and makespan, beside whichever baseline has the least of it in each cell.
    """
    mean_jct = [one.mean_jct.mean for one in judged]
    beyond = [one for one in judged if one.mean_jct.mean > 1 + WITHIN]
    sure = sum(one.mean_jct.low > 1 + WITHIN for one in beyond)
    note = f"{len(judged) - len(beyond)} of {len(judged)} cells within {WITHIN:.0%}; {sure} beyond it and the noise"
    best = "the best baseline of each cell"
    p99, makespan = [one.p99.mean for one in judged], [one.makespan.mean for one in judged]
    least_p99, least_makespan = [one.least_p99 for one in judged], [one.least_makespan for one in judged]
    return [
        figure(title, "mean JCT", "x", mean_jct, at_most={"most": 1 + WITHIN}, beside=best, note=note),
        *(
            figure(title, f"{what}, on average", "x", [ratio], at_most={"median": bar}, beside=name)
            for (name, ratio), (what, bar) in zip(singles, _ON_AVERAGE, strict=True)
        ),
        figure(title, "p99 of JCT", "x", p99, also=[_mean_bar(p99, P99_WITHIN)], beside=best),
        figure(title, "makespan", "x", makespan, also=[_mean_bar(makespan, MAKESPAN_WITHIN)], beside=best),
        figure(
            title,
            "p99 of JCT",
            "x",
            least_p99,
            also=[_mean_bar(least_p99, P99_WITHIN)],
            beside="the least of any baseline",
        ),
        figure(
            title,
            "makespan",
            "x",
            least_makespan,
            also=[_mean_bar(least_makespan, MAKESPAN_WITHIN)],
            beside="the least of any baseline",
        ),
        figure(title, "mean JCT", "x", [one.above_bound for one in judged], beside="a lower bound"),
    ]


def _mean_bar(ratios: Sequence[float], within: float) -> Bar:
    return Bar(1 + within, geometric(ratios), "mean", "x")


def show_cells(judged: Sequence[Judged]) -> None:
    """Every cell, the worst first."""
    rows = [
        [
            one.cell.workload,
            f"{one.cell.load:g} x{one.cell.congestion:g}",
            one.cell.knows,
            f"{one.cell.preemptible:.0%}",
            one.best,
            str(one.mean_jct),
            f"{one.p99.mean:.2f}",
            f"{one.makespan.mean:.2f}",
            f"{one.above_bound:.2f}",
        ]
        for one in sorted(judged, key=lambda one: -one.mean_jct.mean)
    ]
    heads = ["workload", "load", "knows", "preempt.", "best", "mean JCT", "p99", "makesp.", "bound"]
    console().print(table("", heads, rows, left=5))


def main() -> int:
    """Runs the sweep, prints it, and says by the exit code whether every bar is met."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="two workloads and a Philly slice, fewer cells")
    parser.add_argument(
        "--every-share", action="store_true", help="each cell with each share of preemptible jobs"
    )
    parser.add_argument("--seeds", type=int, default=5, help="traces per cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--cache", type=Path, default=Path("demo-out/contest"), help="folder of finished runs"
    )
    parser.add_argument("--cells", action="store_true", help="print every cell")
    given = parser.parse_args()
    wanted, seeds = cells(given.quick, given.every_share), range(FIRST_SEED, FIRST_SEED + given.seeds)

    def played(chosen: list[Cell], of: range) -> Results:
        return sweep(chosen, of, lambda cell: (*baselines(cell), OWN), given.cache, given.workers, _progress)

    results = played(wanted, seeds)
    judged = [judge(results, cell, seeds) for cell in wanted]
    more = range(FIRST_SEED, FIRST_SEED + max(given.seeds, MORE_SEEDS))
    again = set(undecided(judged))
    results |= played(sorted(again), more)
    judged = [judge(results, one.cell, more) if one.cell in again else one for one in judged]
    parts: list[tuple[str, Callable[[Cell], bool]]] = [
        *((f"Remaining times: {knows}", lambda cell, k=knows: cell.knows == k) for knows in KNOWS),
        *(
            (f"Preemptible jobs: {share:.0%}", lambda cell, s=share: cell.preemptible == s)
            for share in SHARES
        ),
        (PHILLY, lambda cell: cell.workload == PHILLY),
        ("All cells", lambda cell: True),
    ]
    found: list[Figure] = []
    for title, chosen in parts:
        mine = [one for one in judged if chosen(one.cell)]
        if mine:
            own = [one.cell for one in mine]
            singles = [best_single(results, own, seeds, at) for at in (MEAN, P99, MAKESPAN)]
            found += clauses(title, mine, singles)
    if given.cells:
        show_cells(judged)
    show(found)
    console().print(
        f"{CLUSTER}, {len(wanted)} cells, {given.seeds} seeds, {len(again)} cells with {len(more)}; modelled network"
    )
    return finish("contest", found, given.results, shown=True)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total or done % 500 < 50:
        print(f"  {done} of {total} runs", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
