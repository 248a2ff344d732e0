"""`make bench-policies`: is berth's own policy as good as the best timers of each cell, without timers to choose?

A sweep of load x congestion x mix, at two job orders, with remaining times known exactly and to +-50 % only.
In each cell the best of the modes of `dally` (no-wait, full, manual, tuned) is the one with the least mean
completion time there; berth is compared with that one on the same traces. Cells in which five traces leave an
interval wider than the 2 % that are promised are played on twenty-five: Philly's few jobs of many weeks, above all.
The exit code is 0 if every clause of the promise is met, 1 if one is not.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from berth.report.terminal import console, table
from policy_sweep import (
    CLUSTER,
    FIGURES,
    FIRST_SEED,
    MIXES,
    MODES,
    OWN,
    RANKS,
    UNSURE,
    Cell,
    Results,
    cells,
    sweep,
)
from results import Bar, Figure, figure, finish, options, show

WITHIN, BETTER_BY, WORSE_BY = 0.02, 0.05, 0.10
BEST = "the best mode of each cell"
HARD_MIXES = ("odd sizes", "large jobs")
MORE_SEEDS = 5  # times as many, where so few leave more doubt than the clause allows difference


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of berth over the best mode's: geometric mean over paired seeds, 95 % interval (t)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, own: NDArray[np.float64], best: NDArray[np.float64]) -> Ratio:
        """From the figures of each seed."""
        logs = np.log(own / best)
        half = 0.0
        if len(logs) > 1:
            half = float(stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / np.sqrt(len(logs)))
        middle = float(logs.mean())
        return cls(float(np.exp(middle)), float(np.exp(middle - half)), float(np.exp(middle + half)))

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Judged:
    """One cell: the best mode there, and berth against it."""

    cell: Cell
    best: str
    mean_jct: Ratio
    p99: Ratio
    makespan: Ratio


def judge(results: Results, wanted: list[Cell], own: str) -> list[Judged]:
    """Every cell of the sweep, with all seeds that it was played on."""
    judged = []
    for cell in wanted:
        runs = [results[cell, seed] for seed in _seeds(results, cell)]
        figures = {name: np.array([run[name] for run in runs]) for name in runs[0]}
        best = min(MODES, key=lambda name: float(np.log(figures[name][:, 0]).mean()))
        ratios = [Ratio.of(figures[own][:, k], figures[best][:, k]) for k in range(len(FIGURES))]
        judged.append(Judged(cell, best, *ratios))
    return judged


def _seeds(results: Results, cell: Cell) -> Iterator[int]:
    seed = FIRST_SEED
    while (cell, seed) in results:
        yield seed
        seed += 1


def doubtful(results: Results, wanted: list[Cell]) -> list[Cell]:
    """Cells in which the interval of mean JCT is wider to either side than the difference that is promised."""
    return [
        one.cell
        for one in judge(results, wanted, OWN)
        if one.mean_jct.high > one.mean_jct.mean * (1 + WITHIN)
    ]


def average(ratios: list[Ratio]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean([np.log(ratio.mean) for ratio in ratios])))


def clauses(title: str, judged: list[Judged]) -> list[Figure]:
    """The promise at one job order: ratios over all cells, and what each clause holds against its bar."""
    mean_jct = [one.mean_jct.mean for one in judged]
    inside = sum(ratio <= 1 + WITHIN for ratio in mean_jct)
    note = f"{inside} of {len(judged)} cells within {WITHIN:.0%}"
    hard = [one.mean_jct for one in judged if one.cell.mix in HARD_MIXES]
    better = Bar(1 - BETTER_BY, average(hard), "mean", "x")
    found = [
        figure(title, "mean JCT", "x", mean_jct, at_most={"most": 1 + WITHIN}, beside=BEST, note=note),
        figure(title, "mean JCT, odd and large", "x", [one.mean for one in hard], also=[better], beside=BEST),
    ]
    for name, ratios in (
        ("p99 of JCT", [one.p99 for one in judged]),
        ("makespan", [one.makespan for one in judged]),
    ):
        over = sum(ratio.low > 1 + WORSE_BY for ratio in ratios)
        bars = [
            Bar(1.0, average(ratios), "mean", "x"),
            Bar(0, over, f"cells {WORSE_BY:.0%} worse beyond the noise"),
        ]
        found.append(figure(title, name, "x", [one.mean for one in ratios], also=bars, beside=BEST))
    return found


def show_cells(judged: list[Judged], title: str) -> None:
    """Averages by mix, and the cells farthest above 1."""
    rows = []
    for mix in MIXES:
        mine = [one for one in judged if one.cell.mix == mix]
        if mine:
            worst = max(mine, key=lambda one: one.mean_jct.mean)
            rows.append(
                [
                    mix,
                    *(
                        f"{average([getattr(one, n) for one in mine]):.3f}"
                        for n in ("mean_jct", "p99", "makespan")
                    ),
                    f"{worst.mean_jct} {worst.cell.load:g} x{worst.cell.congestion:g} {worst.best}",
                ]
            )
    console().print(
        table(title, ["mix", "mean", "p99", "makesp.", "worst mean: load x congestion, best"], rows)
    )


def show_every_cell(judged: list[Judged]) -> None:
    """All cells."""
    rows = [
        [
            one.cell.mix,
            f"{one.cell.load:g}",
            f"{one.cell.congestion:g}",
            one.best,
            str(one.mean_jct),
            f"{one.p99.mean:.3f}",
            f"{one.makespan.mean:.3f}",
        ]
        for one in judged
    ]
    console().print(table("", ["mix", "load", "x", "best", "mean JCT", "p99", "makesp."], rows, left=4))


def main() -> int:
    """Runs the sweep, prints it, and says by the exit code whether the promise is kept."""
    given = _options()
    wanted = cells(given.quick)
    results = sweep(wanted, given.seeds, given.cache, given.workers, _progress)
    wide = doubtful(results, wanted)
    results |= sweep(wide, MORE_SEEDS * given.seeds, given.cache, given.workers, _progress)
    found: list[Figure] = []
    for rank in RANKS:
        for own, words in ((OWN, "remaining times known"), (UNSURE, "known to +-50 % only")):
            judged = judge(results, [cell for cell in wanted if cell.rank == rank], own)
            title = f"{rank.name} order, {words}"
            promise = clauses(title, judged)
            found += promise
            show_cells(judged, f"{title}: berth / best mode of each cell")
            if given.cells:
                show_every_cell(judged)
            show(promise)
    seeds = f"{given.seeds} seeds, {MORE_SEEDS * given.seeds} in {len(wide)} cells with wide intervals"
    console().print(f"{CLUSTER}, {seeds}; modelled network")
    return finish("policies", found, given.results, shown=True)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total:
        print(f"\r{done} of {total} runs", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = options("does berth's own policy keep its promise?")
    parser.add_argument("--quick", action="store_true", help="two mixes, corners only")
    parser.add_argument("--seeds", type=int, default=5, help="traces per cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--cache", type=Path, default=Path("demo-out/policies"), help="folder of finished runs"
    )
    parser.add_argument("--cells", action="store_true", help="print every cell")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
