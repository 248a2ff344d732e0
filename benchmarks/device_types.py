"""`make bench-types`: what it is worth that gangs choose among device types on a mixed cluster.

    python benchmarks/device_types.py [--seeds 5]

Generated gangs, none of which names a type, on three clusters with two or three types. `berth` lets a gang wait for the
type on which it would end first; the same policy without that, and every other, takes the first place that is free.
Ratios of mean and p99 JCT on the same traces, below 1 is better. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.knowledge import Estimates
from berth.simulate.metrics import summarise
from berth.simulate.outcome import require_finished
from berth.simulate.run import Setting, simulate
from berth.workload.distributions import load_durations, load_sizes
from berth.workload.generate import GenerateSpec, generate
from results import Bar, Figure, figure, finish, options, progress

MIXES = {  # racks, machines in each, devices in each of those
    "three types": ((2, 4, "A100-40: 8"), (2, 4, "V100-16: 8"), (2, 4, "T4: 8")),
    "few fast": ((1, 2, "H100: 8"), (4, 4, "T4: 8")),
    "two alike": ((2, 4, "V100-16: 8"), (2, 4, "P100: 8")),
}
LOADS = (0.5, 0.8, 1.1)  # of the type on which durations were measured, the most common one
WORKLOADS = (("powers-of-two", 1.0), ("large", 5.0))  # sizes, congestion
KNOWS: tuple[Estimates, ...] = ("known", "learned", "none")
SHARES = (1.0, 0.0)  # of jobs that can be preempted
OWN, WITHOUT = "berth", "berth:types=no"
OTHERS = ("tiresias", "dally", "required", "optimus", "srsf", "themis")
FIRST_SEED = 300  # the rule was chosen while looking at smaller seeds
JOBS = 600
AT_MOST, WORST = 0.90, 1.15


@dataclass(frozen=True)
class Cell:
    """One point of the sweep."""

    mix: str
    load: float
    sizes: str
    congestion: float
    knows: Estimates
    preemptible: float


def cells() -> list[Cell]:
    """All points."""
    found = product(MIXES, LOADS, WORKLOADS, KNOWS, SHARES)
    return [Cell(mix, load, *workload, knows, share) for mix, load, workload, knows, share in found]


def cluster_of(mix: str) -> Cluster:
    """The cluster of a mix."""
    racks = [
        f"  - {{count: {count}, machines: [{{count: {machines}, devices: {{{devices}}}}}]}}"
        for count, machines, devices in MIXES[mix]
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text("\n".join(["racks:", *racks]))
        return load_cluster(str(path))


def measure(cell: Cell, cluster: Cluster, seed: int) -> dict[str, tuple[float, float]]:
    """Mean and p99 of JCT by policy."""
    spec = GenerateSpec(
        jobs=JOBS,
        load=cell.load,
        gpus=cluster.devices,
        sizes=load_sizes(cell.sizes),
        durations=load_durations("lognormal:1h:1.5"),
        users=15,
        seed=seed,
    )
    setting = Setting(
        congestion=cell.congestion,
        seed=seed,
        estimates=cell.knows,
        estimate_error=0.5 if cell.knows == "known" else 0.0,
        preemptible=cell.preemptible,
    )
    trace, found = generate(spec), {}
    for policy in (OWN, WITHOUT, *OTHERS):
        summary = summarise(require_finished(simulate(trace, cluster, load_policy(policy), setting)))
        found[policy] = (summary.mean_jct_s, summary.p99_jct_s)
    return found


def geometric(values: Sequence[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


Ratios = dict[
    Cell, tuple[float, float, float]
]  # mean and p99 over the same without choice, mean over the best other


def ratios_of(cell: Cell, seeds: range) -> tuple[float, float, float]:
    """Geometric means over seeds."""
    cluster = cluster_of(cell.mix)
    runs = [measure(cell, cluster, seed) for seed in seeds]
    mean_jct, p99 = (geometric([run[OWN][at] / run[WITHOUT][at] for run in runs]) for at in (0, 1))
    best = min(geometric([run[name][0] for run in runs]) for name in OTHERS)
    return mean_jct, p99, geometric([run[OWN][0] for run in runs]) / best


def figures(found: Ratios) -> list[Figure]:
    """Over all cells, and over those of each cluster and share."""
    parts = [("all", found)]
    parts += [(mix, {cell: ratio for cell, ratio in found.items() if cell.mix == mix}) for mix in MIXES]
    parts += [
        (
            f"{share:.0%} preemptible",
            {cell: ratio for cell, ratio in found.items() if cell.preemptible == share},
        )
        for share in SHARES
    ]
    made = []
    for name, part in parts:
        columns = list(zip(*part.values(), strict=True))
        for what, values, beside in (
            ("mean JCT", columns[0], WITHOUT),
            ("p99 of JCT", columns[1], WITHOUT),
            ("mean JCT", columns[2], "the best other policy of each cell"),
        ):
            bars = [Bar(AT_MOST, geometric(values), "mean", "x")] if name == "all" else []
            worst = {"most": WORST} if name == "all" and (what, beside) == ("mean JCT", WITHOUT) else {}
            made.append(figure(f"Cells: {name}", what, "x", values, also=bars, at_most=worst, beside=beside))
    return made


def main() -> int:
    """Runs all cells, prints them, and says by the exit code whether every bar is met."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    found: Ratios = {}
    for cell in cells():
        found[cell] = ratios_of(cell, range(FIRST_SEED, FIRST_SEED + given.seeds))
        about = (
            f"{cell.mix}, load {cell.load:g}, {cell.sizes}, {cell.knows}, {cell.preemptible:.0%} preemptible"
        )
        progress(
            f"{about}: mean JCT {found[cell][0]:.2f}, p99 {found[cell][1]:.2f}, {found[cell][2]:.2f} of the best"
        )
    return finish("device_types", figures(found), given.results)


if __name__ == "__main__":
    sys.exit(main())
