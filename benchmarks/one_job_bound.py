"""How cheap a cell of `make bench-one-job` could be at all: a lower bound on dollars per example, by a linear program.

    python benchmarks/one_job_bound.py [--jobs 300] [--seed 100] [--slots 32] [--mix two] [--load 0.9] [--kind plan]

It spreads each job over its shapes and over slots of time at will, knows all jobs in advance, preempts at no cost, and
places without gaps. Kept are arrivals, the devices of each type in each slot, and that no job runs faster than its
shapes do. Mean JCT is at most that of the best fixed rule less `--jct` per cent; a job ends at least half of its run
after the middle of it. So no schedule that keeps each job in one shape is both that fast and cheaper than the bound.
The time ends 15 % after the last job of berth's own run did. Cells without ordinary gangs only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from berth.cluster.model import Cluster
from berth.workload.flexible import FlexibleSpec, generate_flexible
from berth.workload.trace import Trace
from one_job import LOADS, MIXES, RULES, change, cluster_of, fixed, measure, usd
from results import options, progress

KINDS = ("plan", "data-parallel")
_LONGER = 1.15  # than berth's own run
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Choice:
    """Running all of a job in a shape within one slot: a variable, the share of the job for which that holds."""

    job: int
    slot: int
    run_s: float
    usd: float
    jct_s: float  # at least, if the whole job ran so
    devices: dict[str, int]


def choices(trace: Trace, price: dict[str, float], edges: NDArray[np.float64]) -> Iterator[Choice]:
    """All of them; a job has none before it arrives."""
    for row, job in enumerate(trace.job_ids):
        offer, arrival = trace.offers[job], float(trace.submit_s[row])
        for shape in offer.alternatives:
            run_s = offer.near_s(shape)
            for slot in range(int(np.searchsorted(edges, arrival, "right")) - 1, len(edges) - 1):
                waits_s = max(0.0, float(edges[slot]) - arrival)
                dollars = usd(shape, price) * run_s / 3600
                yield Choice(row, slot, run_s, dollars, waits_s + run_s / 2, shape.devices)


def least_usd(trace: Trace, cluster: Cluster, jct_s: float, until_s: float, slots: int) -> float:
    """Dollars of all jobs at the optimum; nan: none found in time."""
    price = {kind.name: kind.usd_per_hour or 0.0 for kind in cluster.device_types}
    count = {kind.name: cluster.count_of(row) for row, kind in enumerate(cluster.device_types)}
    edges = np.linspace(0.0, until_s, slots + 1)
    slot_s = float(edges[1])
    made = list(choices(trace, price, edges))
    rows: dict[object, int] = {"jct": 0}
    limits = [jct_s * len(trace)]
    entries: list[tuple[float, int, int]] = []  # value, row, column
    for column, one in enumerate(made):
        entries.append((one.jct_s, 0, column))
        for name, devices in one.devices.items():
            row = rows.setdefault((name, one.slot), len(rows))
            if row == len(limits):
                limits.append(1.0)
            entries.append((one.run_s * devices / (count[name] * slot_s), row, column))
        row = rows.setdefault((one.job, one.slot), len(rows))
        if row == len(limits):
            free_s = float(edges[one.slot + 1]) - max(float(edges[one.slot]), float(trace.submit_s[one.job]))
            limits.append(free_s / slot_s)
        entries.append((one.run_s / slot_s, row, column))
    values, at, columns = (np.array(part) for part in zip(*entries, strict=True))
    jobs = np.array([one.job for one in made])
    whole = coo_array((np.ones(len(made)), (jobs, np.arange(len(made)))), shape=(len(trace), len(made)))
    found = linprog(
        [one.usd for one in made],
        A_ub=coo_array((values, (at, columns)), shape=(len(limits), len(made))).tocsr(),
        b_ub=limits,
        A_eq=whole.tocsr(),
        b_eq=np.ones(len(trace)),
        method="highs-ipm",
        options={"time_limit": _LIMIT_S},
    )
    return float(found.fun) if found.status == 0 else float("nan")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--jct", type=float, default=15.0, help="per cent below the best fixed rule")
    parser.add_argument("--mix", choices=MIXES)
    parser.add_argument("--load", type=float, choices=LOADS)
    parser.add_argument("--kind", choices=KINDS)
    given = parser.parse_args()
    bounds = []
    for mix in [given.mix] if given.mix else MIXES:
        for load in [given.load] if given.load else LOADS:
            for kind in [given.kind] if given.kind else KINDS:
                cluster = cluster_of(mix)
                trace = generate_flexible(FlexibleSpec(given.jobs, load, kind, seed=given.seed), cluster)
                own, run = measure(trace, cluster)
                by_rule = [measure(fixed(trace, cluster, rule), cluster)[0] for rule in RULES.values()]
                best = min(by_rule, key=lambda one: one.jct_s)
                until_s = _LONGER * float(run.records["end_s"].max())
                jct_s = best.jct_s * (1 - given.jct / 100)
                dollars = least_usd(trace, cluster, jct_s, until_s, given.slots)
                bounds.append(change(dollars, best.usd))
                progress(
                    f"{mix}, load {load}, {kind}: dollars at least {bounds[-1]:+.1f} % at JCT -{given.jct:g} %;"
                    f" berth {change(own.usd, best.usd):+.1f} % at {change(own.jct_s, best.jct_s):+.1f} %"
                )
    progress(f"mean over cells: dollars at least {np.mean(bounds):+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
