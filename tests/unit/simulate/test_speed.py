"""Values of a simulation on shared links: finish times and exposed seconds of gangs that meet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from berth.cluster.load import load_cluster
from berth.network.fabric import Fabric
from berth.network.flow import alone_s, flow_of
from berth.network.placement import Placement
from berth.simulate.events import event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import jobs
from berth.testing.policies import EXERCISES
from berth.workload.profiles import load_profile

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from iterations import SharingJob, mean_slowdowns

CLUSTER = load_cluster("3x1x8:A100")  # of two gangs of 12, both cross the up-link of one rack
WORK_S = 1000.0


@pytest.mark.parametrize(("model", "congestion"), [("vgg16", 20), ("bert-large", 5), ("gpt2-medium", 10)])
@pytest.mark.slow
def test_two_gangs_on_one_link_finish_when_the_explicit_simulation_says(model, congestion):
    trace = jobs([(0, 12, WORK_S, model), (0, 12, WORK_S, model)])
    run = simulate(trace, CLUSTER, EXERCISES["fit-first"], Setting(congestion=congestion, log=True))
    started = event_frame(run).filter(event="started")["places"].to_list()
    assert sorted(map(sorted, started)) == [["r0-m0:8", "r1-m0:4"], ["r1-m0:4", "r2-m0:8"]]

    fabric, traffic = Fabric(CLUSTER, congestion), load_profile(model).traffic(CLUSTER.device_types[0])
    flows = [flow_of(traffic, Placement.of_counts(counts), fabric) for counts in ({0: 8, 1: 4}, {1: 4, 2: 8})]
    gangs = [
        SharingJob(
            traffic.forward * traffic.compute_s,
            (1 - traffic.forward) * traffic.compute_s,
            flow.volume_bytes,
            flow.volume_bytes / flow.alone_comm_s,
            traffic.overlap,
            dict(zip(flow.links.tolist(), flow.weights.tolist(), strict=True)),
        )
        for flow in flows
    ]
    slowdown = sum(mean_slowdowns(gangs, fabric.arrays.capacity.tolist(), 6, iterations=30, skip=12)) / 2
    assert slowdown > 1.1  # they do meet

    near_s = float(run.jobs.traffic["near_s"][0])
    seconds = slowdown * alone_s(traffic, flows[0])
    for record, account in zip(run.records, run.accounts, strict=True):
        assert float(record["end_s"]) == pytest.approx(WORK_S * seconds / near_s, rel=0.08)
        ran_s = float(record["end_s"] - record["first_start_s"])
        exposed = (ran_s - WORK_S * traffic.compute_s / near_s) * 12
        assert float(account["exposed_comm_gpu_s"]) == pytest.approx(exposed, rel=1e-9)


@pytest.mark.slow
def test_a_gang_that_comes_later_slows_the_first_only_while_it_runs():
    setting = Setting(congestion=20)
    alone = simulate(jobs([(0, 12, WORK_S, "vgg16")]), CLUSTER, EXERCISES["fit-first"], setting)
    pair = [(0, 12, WORK_S, "vgg16"), (100, 12, 50, "vgg16")]
    first, second = simulate(jobs(pair), CLUSTER, EXERCISES["fit-first"], setting).records
    shared_s = float(second["end_s"]) - 100
    slowed = shared_s / (50 * float(alone.records[0]["end_s"]) / WORK_S)
    # both make the same progress while they meet, so the first one loses just what the second one did
    lost_s = shared_s * (1 - 1 / slowed)
    assert slowed > 1.1
    assert float(first["end_s"]) == pytest.approx(float(alone.records[0]["end_s"]) + lost_s, rel=1e-9)
