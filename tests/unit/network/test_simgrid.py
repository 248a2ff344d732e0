"""Shares of links and all-reduces against SimGrid, which knows nothing of berth.

SimGrid comes from Debian (python3-simgrid), for the system's Python: without it these tests skip and say so.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from berth.network import _flow_kernels, _kernels
from berth.network.fabric import Fabric
from berth.network.flow import flow_of
from berth.network.placement import Placement
from berth.network.sharing import LinkShares
from berth.network.traffic import Traffic

pytestmark = pytest.mark.slow

PYTHON = "/usr/bin/python3"
SCRIPT = Path(__file__).with_name("simgrid_flows.py")
GB = 1e9


@pytest.fixture(scope="module", autouse=True)
def _simgrid():
    try:
        subprocess.run([PYTHON, "-c", "import simgrid"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("SimGrid is not installed for the system's Python (Debian: python3-simgrid)")


def ends_in_simgrid(links: list[float], flows: list[dict]) -> list[float]:
    asked = json.dumps({"links": links, "flows": flows})
    result = subprocess.run(
        [PYTHON, str(SCRIPT)], input=asked, capture_output=True, text=True, check=True, timeout=600
    )
    return json.loads(result.stdout.splitlines()[-1])


def ends_by_shares(links: list[float], flows: list[dict]) -> list[float]:
    """Each flow goes on at its max-min rate until the next one ends."""
    shares = LinkShares(links, len(flows), sum(len(flow["links"]) for flow in flows))
    left = [flow["bytes"] for flow in flows]
    for number, flow in enumerate(flows):
        shares.add(number, flow["links"], np.ones(len(flow["links"])), flow["cap"] or np.inf)
    present, now, ends = set(range(len(flows))), 0.0, [0.0] * len(flows)
    while present:
        step = min(left[number] / shares.rates[number] for number in present)
        now += step
        for number in sorted(present):
            left[number] -= step * shares.rates[number]
        for number in [number for number in sorted(present) if left[number] <= 1e-6]:
            shares.remove(number)
            present.remove(number)
            ends[number] = now
    return ends


@pytest.mark.parametrize("seed", range(6))
def test_flows_between_random_machines_end_when_simgrid_says(build, seed):
    rng = random.Random(seed)
    racks = [[rng.choice([4, 8]) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(2, 4))]
    arrays = Fabric(build(racks), rng.choice([1.0, 5.0])).arrays
    machines = sum(map(len, racks))
    flows = []
    for _ in range(20):
        source, target = rng.sample(range(machines), 2)
        crossed = [int(arrays.links[0, source])]
        if arrays.groups[1, source] != arrays.groups[1, target]:
            crossed.append(int(arrays.links[1, source]))
        cap = rng.choice([None, float(rng.randrange(5, 40)) * GB])
        flows.append({"links": crossed, "bytes": rng.randrange(1, 50) * int(GB), "cap": cap})
    expected = ends_in_simgrid(arrays.capacity.tolist(), flows)
    assert ends_by_shares(arrays.capacity.tolist(), flows) == pytest.approx(expected, rel=1e-6)


def stage_in_simgrid(fabric: Fabric, leaving: list[tuple[list[int], float, float]]) -> float:
    """Seconds of flows that start together: (links, bytes, cap) of each."""
    flows = [{"links": links, "bytes": round(size), "cap": cap} for links, size, cap in leaving]
    return max(ends_in_simgrid(fabric.arrays.capacity.tolist(), flows))


@pytest.mark.parametrize("seed", range(4))
def test_a_hierarchical_all_reduce_takes_what_its_stages_take_in_simgrid(build, seed):
    rng = random.Random(seed)
    fabric = Fabric(build([[8] * rng.randrange(1, 4) for _ in range(rng.randrange(2, 4))]), 5.0)
    arrays, volume = fabric.arrays, 10 * GB
    counts = {machine: rng.randrange(1, 9) for machine in range(len(fabric.cluster.machines))}
    placement = Placement.of_counts(counts)
    machines, fan, _ = _kernels.nest(placement.machines, placement.counts, arrays)
    share, expected = np.ones(len(machines)), 0.0
    for tier in range(1, _kernels.widest_tier(fan) + 1):
        leaving = []
        for i, machine in enumerate(machines):
            n = int(fan[tier, i])
            if (
                n > 1
            ):  # a ring among n members at this tier: each machine sends its part of the group's vector
                size = 2 * (n - 1) / n * volume / share[i]
                crossed = [int(arrays.links[level, machine]) for level in range(tier)]
                leaving.append((crossed, size, _kernels.peak_rate(machine, fan[0, i], tier, arrays)))
            share[i] *= n
        expected += stage_in_simgrid(fabric, leaving) if leaving else 0.0
    where = placement.machines, placement.counts, arrays
    sending = _flow_kernels.flow(volume, 0.0, 0.0, _flow_kernels.HIERARCHICAL, *where)[2]
    assert sending == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sizes", [[[1, 1, 1, 1]], [[1, 1], [1, 1, 1]], [[1], [1], [1]]], ids=str)
def test_a_flat_ring_takes_what_its_point_to_point_flows_take_in_simgrid(build, sizes):
    fabric = Fabric(build(sizes), 2.0)
    arrays, n, volume = fabric.arrays, sum(map(len, sizes)), 10 * GB
    size = 2 * (n - 1) / n * volume
    leaving = []
    for source in range(n):
        target = (source + 1) % n
        across = arrays.groups[1, source] != arrays.groups[1, target]
        crossed = [int(arrays.links[level, source]) for level in range(2 if across else 1)]
        leaving.append((crossed, size, float(arrays.peak[2 if len(sizes) > 1 else 1])))
    traffic = Traffic(0.0, volume)
    flow = flow_of(traffic, Placement.of_counts(dict.fromkeys(range(n), 1)), fabric)
    expected, found = stage_in_simgrid(fabric, leaving), flow.alone_comm_s - flow.fixed_s
    if len({len(rack) for rack in sizes}) == 1:
        assert found == pytest.approx(expected, rel=1e-6)
    else:  # on uneven racks the hierarchical ring is faster, and chosen
        assert found < expected


@pytest.mark.parametrize("n", [4, 7, 12, 15])
def test_a_tree_takes_what_two_complementary_trees_take_in_simgrid(build, n):
    fabric = Fabric(build([[1] * n]), 2.0)
    volume, leaving = 10 * GB, []
    for order in (
        list(range(n)),
        list(range(n - 1, -1, -1)),
    ):  # inner machines of one are leaves of the other
        for place in range(1, n):
            child, parent = order[place], order[(place - 1) // 2]
            # half of the vector up to be reduced, half of it down again
            leaving += [
                ([int(fabric.arrays.links[0, sender])], volume / 2, None) for sender in (child, parent)
            ]
    where = np.arange(n, dtype=np.int32), np.ones(n, dtype=np.int32), fabric.arrays
    sending = _flow_kernels.flow(volume, 0.0, 0.0, _flow_kernels.TREE, *where)[2]
    expected = stage_in_simgrid(fabric, leaving)
    if n > 4:
        assert sending == pytest.approx(expected, rel=1e-6)
    else:  # so few machines have no inner one with two children: the formula is a bound
        assert expected < sending <= 1.4 * expected
