"""What one change of the shared links costs: jobs come and go on 1,000 machines in 64 racks.

    python benchmarks/sharing.py [--jobs 1000] [--changes 5000] [--congestion 1]

Jobs take 2 to 32 GPUs (8 on average, so that 1,000 of them fill the cluster), on few machines or many, and a
third of them each lies in one rack, in two, and anywhere.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from berth.arrays import IntArray
from berth.cluster.load import load_cluster
from berth.network.fabric import Fabric
from berth.network.flow import Flow, flow_of
from berth.network.placement import Placement
from berth.network.sharing import LinkShares
from berth.network.traffic import Traffic
from results import figure, finish, options

MACHINES, RACKS, SEED = 1024, 64, 7


def random_flow(fabric: Fabric, random: np.random.Generator) -> Flow:
    gpus = int(random.choice([2, 4, 8, 16, 32], p=[0.25, 0.25, 0.3, 0.15, 0.05]))
    machines = max(2, gpus // int(random.choice([1, 2, 4, 8])))
    first = random.integers(0, RACKS)
    reach = int(random.choice([1, 2, RACKS]))  # one rack, two neighbouring racks, or anywhere
    pool = (first * (MACHINES // RACKS) + np.arange(reach * (MACHINES // RACKS))) % MACHINES
    chosen = random.choice(pool, min(machines, len(pool)), replace=False)
    counts = {int(machine): min(8, max(1, gpus // machines)) for machine in chosen}
    return flow_of(Traffic(0.1, 1e9), Placement.of_counts(counts), fabric)


def add(shares: LinkShares, job: int, flow: Flow) -> IntArray:
    return shares.add(job, flow.links, flow.weights, flow.cap)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=5000)
    parser.add_argument("--congestion", type=float, default=1.0)
    arguments = parser.parse_args()
    random = np.random.default_rng(SEED)
    fabric = Fabric(load_cluster(f"{RACKS}x{MACHINES // RACKS}x8"), arguments.congestion)
    flows = [random_flow(fabric, random) for _ in range(2 * arguments.jobs)]
    shares = LinkShares(fabric.arrays.capacity, jobs=len(flows), edges=1 << 17)
    for job in range(arguments.jobs):
        add(shares, job, flows[job])
    present, absent = list(range(arguments.jobs)), list(range(arguments.jobs, len(flows)))
    micros, changed = [], []
    for step in range(arguments.changes):
        source, target = (present, absent) if step % 2 == 0 else (absent, present)
        job = source.pop(int(random.integers(len(source))))
        target.append(job)
        started = time.perf_counter_ns()
        touched = shares.remove(job) if source is present else add(shares, job, flows[job])
        micros.append((time.perf_counter_ns() - started) / 1000)
        changed.append(len(touched))
    edges = sum(len(flows[job].links) for job in present)
    slowed = sum(shares.rates[job] < 0.999 * flows[job].cap for job in present)
    title = f"{len(present):,} jobs on {edges:,} links, {slowed:,} of them held below their cap"
    found = [
        figure(
            title, "one change", "us", micros, quartiles=True, note=f"p99 {np.percentile(micros, 99):.0f} us"
        ),
        figure(
            title, "rates changed by it", "", changed, quartiles=True, note=f"mean {np.mean(changed):.1f}"
        ),
    ]
    return finish("sharing", found, arguments.results)


if __name__ == "__main__":
    sys.exit(main())
