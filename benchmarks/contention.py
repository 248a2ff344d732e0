"""Contention: the simulator's closed form against iterations played one by one, over models, congestion and gangs.

    python benchmarks/contention.py [--offsets 8]

Gangs of one model, 4 + 4 and 3 + 3 GPUs over two racks, share the racks' up-links. Every model that berth knows, at
congestion 1, 2, 5, 10 and 20, two and three gangs; the explicit simulation is averaged over offsets between them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

from berth.cluster.load import load_cluster
from berth.network.contention import beside
from berth.network.fabric import Fabric
from berth.network.flow import alone_s, flow_of
from berth.network.placement import Placement
from berth.workload.profiles import all_profiles, load_profile
from iterations import SharingJob, mean_slowdowns
from results import figure, finish, options

CLUSTER = "4x2x8:A100"
CONGESTION = (1, 2, 5, 10, 20)
Cell = tuple[str, int, int, int, int]  # model, GPUs on each of two machines, congestion, gangs, offsets


def slowdowns(cell: Cell) -> tuple[float, float]:
    """Return the closed form's slowdown and the explicit simulation's mean."""
    model, gpus, congestion, gangs, offsets = cell
    fabric = Fabric(load_cluster(CLUSTER), congestion)
    placement = Placement.of_counts({0: gpus, 2: gpus})
    traffic = load_profile(model).traffic(fabric.cluster.device_types[0])
    flow = flow_of(traffic, placement, fabric)
    job = SharingJob(
        traffic.forward * traffic.compute_s,
        (1 - traffic.forward) * traffic.compute_s,
        flow.volume_bytes,
        flow.volume_bytes / flow.alone_comm_s,
        traffic.overlap,
        dict(zip(flow.links.tolist(), flow.weights.tolist(), strict=True)),
    )
    grid = offsets if gangs == 2 else max(2, offsets // 2)
    played = mean_slowdowns([job] * gangs, fabric.arrays.capacity.tolist(), grid)
    return beside(traffic, placement, fabric, gangs - 1) / alone_s(traffic, flow), float(np.mean(played))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--offsets", type=int, default=8)
    arguments = parser.parse_args()
    models = [profile.name for profile in all_profiles()]
    cells: list[Cell] = [(*cell, arguments.offsets) for cell in product(models, (4, 3), CONGESTION, (2, 3))]
    with ProcessPoolExecutor(2) as pool:
        found = np.array(list(pool.map(slowdowns, cells, chunksize=4)))
    errors = 100 * np.abs(found[:, 0] / found[:, 1] - 1)
    meets = found[:, 1] > 1.02
    figures = []
    for congestion, gangs in product(CONGESTION, (2, 3)):
        rows = np.array([cell[2] == congestion and cell[3] == gangs for cell in cells])
        slowest = (
            f"{int((rows & meets).sum())} of {rows.sum()} cells slowed, the most {found[rows, 1].max():.2f}x"
        )
        name = f"{gangs} gangs, congestion x{congestion}"
        figures.append(figure("error by congestion", name, "%", errors[rows].tolist(), note=slowest))
    slowed, title = errors[meets].tolist(), f"all {len(cells)} cells"
    figures.append(
        figure(title, "error where gangs are slowed by more than 2 %", "%", slowed, at_most={"median": 3.0})
    )
    figures.append(figure(title, "error in any cell", "%", errors.tolist(), at_most={"most": 8.0}))
    return finish("contention", figures, arguments.results)


if __name__ == "__main__":
    sys.exit(main())
