"""`make bench-policies`: does berth's own policy keep its promise, that nobody has to choose timers?

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
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from berth.report.terminal import console, print_json, table
from berth.schedule.policies.berth import Rank
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

WITHIN, BETTER_BY, WORSE_BY = 0.02, 0.05, 0.10
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
            half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
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


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of the promise."""

    text: str
    met: bool
    found: str


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


def clauses(judged: list[Judged]) -> list[Clause]:
    """The promise at one job order."""
    worst = max(judged, key=lambda one: one.mean_jct.mean)
    inside = sum(one.mean_jct.mean <= 1 + WITHIN for one in judged)
    hard = average([one.mean_jct for one in judged if one.cell.mix in HARD_MIXES])
    found = [
        Clause(
            f"mean JCT within {WITHIN:.0%} of the best, every cell",
            inside == len(judged),
            f"{inside} of {len(judged)}; worst {worst.mean_jct.mean:.3f}",
        ),
        Clause(f"mean JCT {BETTER_BY:.0%} better, odd and large cells", hard <= 1 - BETTER_BY, f"{hard:.3f}"),
    ]
    for name, ratios in (
        ("p99", [one.p99 for one in judged]),
        ("makespan", [one.makespan for one in judged]),
    ):
        mean = average(ratios)
        over = sum(ratio.low > 1 + WORSE_BY for ratio in ratios)
        tail = f"{len(ratios) - over} of {len(ratios)}; worst {max(r.mean for r in ratios):.3f}"
        found.append(Clause(f"{name} on average no worse", mean <= 1, f"{mean:.3f}"))
        found.append(
            Clause(f"{name} nowhere {WORSE_BY:.0%} worse beyond the noise", over == 0, tail),
        )
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


def show_clauses(found: list[Clause]) -> None:
    """One line per clause."""
    rows = [[clause.text, "met" if clause.met else "NOT MET", clause.found] for clause in found]
    console().print(table("", ["promise", "", "found"], rows, left=3))


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
    options = _options()
    started = time.monotonic()
    wanted = cells(options.quick)
    results = sweep(wanted, options.seeds, options.cache, options.workers, _progress)
    wide = doubtful(results, wanted)
    results |= sweep(wide, MORE_SEEDS * options.seeds, options.cache, options.workers, _progress)
    out: list[dict[str, Any]] = []
    kept = True
    for rank in RANKS:
        for own, words in ((OWN, "remaining times known"), (UNSURE, "known to +-50 % only")):
            judged = judge(results, [cell for cell in wanted if cell.rank == rank], own)
            found = clauses(judged)
            kept = kept and all(clause.met for clause in found)
            out.append(_json(rank, own, judged, found))
            if not options.json:
                show_cells(judged, f"{rank.name} order, {words}: berth / best mode of each cell")
                if options.cells:
                    show_every_cell(judged)
                show_clauses(found)
    if options.json:
        print_json(
            {"cluster": CLUSTER, "seeds": options.seeds, "doubtful": len(wide), "kept": kept, "orders": out}
        )
    else:
        spent = time.monotonic() - started
        verdict = "the promise is kept" if kept else "the promise is NOT kept in full"
        seeds = (
            f"{options.seeds} seeds, {MORE_SEEDS * options.seeds} in {len(wide)} cells with wide intervals"
        )
        console().print(f"{CLUSTER}, {seeds}; modelled network; {spent:.0f} s: {verdict}")
    return 0 if kept else 1


def _json(rank: Rank, own: str, judged: list[Judged], found: list[Clause]) -> dict[str, Any]:
    rows = [asdict(one) | {"cell": asdict(one.cell) | {"rank": rank.name}} for one in judged]
    return {
        "order": rank.name,
        "policy": own,
        "cells": rows,
        "clauses": [asdict(clause) for clause in found],
    }


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total:
        print(f"\r{done} of {total} runs", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="does berth's own policy keep its promise?")
    parser.add_argument("--quick", action="store_true", help="two mixes, corners only")
    parser.add_argument("--seeds", type=int, default=5, help="traces per cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--cache", type=Path, default=Path("demo-out/policies"), help="folder of finished runs"
    )
    parser.add_argument("--cells", action="store_true", help="print every cell")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
