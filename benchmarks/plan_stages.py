"""Stages of plans with unequal replicas, predicted and measured (`python benchmarks/plan_stages.py`).

Three plans of `ctrdnn-8` run by turns, every replica a process of this machine and the tables on a server. Predicted is
the planner's formula for a replica and a step, with the profile that berth comes with; measured is the CPU time of the
slowest replica, without waiting for others, so processes may outnumber cores. There is no bar: the profile may be that
of another core. Predictions for this machine's own rates are on the page about plans (`make bench-plan-truth`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from results import Figure, figure, finish, options, progress

BATCH, MICRO, STEPS = 2048, 4, 16
REPLICAS = ((1, 2), (2, 1), (3, 2))
PLAN = """\
model: ctrdnn-8
devices: [cpu-core]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: {batch}
micro_batches: {micro}
stages:
  - {{layers: embedding .. norm, type: cpu-core, replicas: {first}, tables: servers, servers: 1}}
  - {{layers: fc1 .. loss, type: cpu-core, replicas: {second}}}
"""


def run(folder: Path, replicas: tuple[int, int]) -> list[dict[str, Any]]:
    """The stages of one run, as `berth train --json` compares them."""
    first, second = replicas
    plan = folder / f"plan-{first}-{second}.yaml"
    plan.write_text(PLAN.format(batch=BATCH, micro=MICRO, first=first, second=second))
    command = [sys.executable, "-m", "berth", "train", "ctrdnn-8", "--plan", str(plan)]
    command += ["--scale", "1", "--steps", str(STEPS), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    stages: list[dict[str, Any]] = json.loads(done.stdout)["plan"]["stages"]
    return stages


def figures(runs: dict[tuple[int, int], list[list[dict[str, Any]]]]) -> list[Figure]:
    """From the stages of every turn, by replicas."""
    found = []
    for replicas, turns in runs.items():
        title = f"{replicas[0]} and {replicas[1]} replicas, a step of {BATCH:,} examples"
        for number, stages in enumerate(zip(*turns, strict=True), 1):
            what = f"stage {number}, {stages[0]['layers']}"
            predicted = [1e3 * one["predicted_s"] for one in stages]
            measured = [1e3 * one["measured_s"] for one in stages]
            ratios = [mine / other for mine, other in zip(measured, predicted, strict=True)]
            found += [
                figure(title, f"{what}: predicted", "ms", predicted[:1]),
                figure(title, f"{what}: measured", "ms", measured),
                figure(title, f"{what}: measured", "x", ratios, beside="predicted"),
            ]
    return found


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    runs: dict[tuple[int, int], list[list[dict[str, Any]]]] = {replicas: [] for replicas in REPLICAS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.turns):
            for replicas, turns in runs.items():
                progress(f"{replicas[0]} and {replicas[1]} replicas")
                turns.append(run(Path(folder), replicas))
    return finish("plan-stages", figures(runs), given.results)


if __name__ == "__main__":
    sys.exit(main())
