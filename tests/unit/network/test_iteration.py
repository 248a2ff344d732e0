"""Iteration times, overlap, and how sensitive a job is to distance."""

from __future__ import annotations

import math

import pytest
from collectives import all_reduce_s, all_to_all_s, server_s

from berth.cluster.model import Tier
from berth.errors import InputError
from berth.network.distances import distances, sensitivity
from berth.network.fabric import Fabric
from berth.network.iteration import iteration_time
from berth.network.placement import Placement
from berth.network.traffic import Traffic

SPREAD = {0: 4, 1: 2, 2: 2}


def test_a_single_device_only_computes(build):
    traffic = Traffic(0.1, 1e9, 1e9, 1e9)
    found = iteration_time(traffic, Placement.of_counts({0: 1}), Fabric(build([[8, 8]])))
    assert (found.seconds, found.comm_s, found.exposed_s, found.tier) == (0.1, 0.0, 0.0, 0)


def test_kinds_of_traffic_follow_each_other(build):
    fabric, placement = Fabric(build([[8, 8], [8]])), Placement.of_counts(SPREAD)
    found = iteration_time(Traffic(0.1, 1e9, 2e9, 3e9), placement, fabric)
    parts = (
        all_reduce_s(1e9, placement, fabric),
        all_to_all_s(2e9, placement, fabric),
        server_s(3e9, placement, fabric),
    )
    assert found.comm_s == pytest.approx(sum(parts), rel=1e-12)
    assert found.seconds == pytest.approx(0.1 + sum(parts), rel=1e-12)
    assert found.exposed_s == pytest.approx(sum(parts), rel=1e-12)
    assert found.tier == 2
    assert found.source == "formula"


def test_the_collective_of_the_job_is_used(build):
    fabric, placement = Fabric(build([[8, 8], [8]])), Placement.of_counts(SPREAD)
    ring, tree = (
        iteration_time(Traffic(0.0, 1e9, collective=kind), placement, fabric).seconds
        for kind in ("ring", "tree")
    )
    assert ring == all_reduce_s(1e9, placement, fabric, "ring")
    assert tree == all_reduce_s(1e9, placement, fabric, "tree")
    assert ring != tree


@pytest.mark.parametrize(("overlap", "seconds"), [(1, 7.0), (2, 5.0), (1e6, 4.0), (1e300, 4.0)])
def test_overlap_hides_the_shorter_behind_the_longer(build, overlap, seconds):
    fabric = Fabric(build([[2]], (Tier("machine", 1.0), Tier("network", 1.0))))
    # A ring of two at 1 byte/s sends its vector once: 4 bytes, 4 seconds.
    traffic = Traffic(3.0, 4.0, overlap=overlap)
    found = iteration_time(traffic, Placement.of_counts({0: 2}), fabric)
    assert found.seconds == pytest.approx(seconds, rel=1e-5)
    assert found.exposed_s == pytest.approx(seconds - 3.0, rel=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"compute_s": -1.0},
        {"compute_s": math.nan},
        {"compute_s": 1.0, "all_reduce_bytes": -1.0},
        {"compute_s": 1.0, "all_to_all_bytes": math.inf},
        {"compute_s": 1.0, "overlap": 0.5},
        {"compute_s": 1.0, "collective": "butterfly"},
    ],
)
def test_traffic_that_means_nothing_is_refused(wrong):
    with pytest.raises(InputError, match="must be"):
        Traffic(**wrong)


def test_sensitivity_is_the_widest_iteration_over_the_nearest(build):
    fabric, traffic = Fabric(build([[4] * 4] * 4)), Traffic(0.05, 1e9)
    rows = distances(traffic, 4, fabric)
    near = iteration_time(traffic, Placement.of_counts({0: 4}), fabric).seconds
    wide = iteration_time(traffic, Placement.of_counts({0: 1, 4: 1, 8: 1, 12: 1}), fabric).seconds
    assert sensitivity(traffic, 4, fabric) == wide / near == rows[-1].slowdown
    assert rows[0].slowdown == 1
    assert rows[0].spread.groups == (1, 1, 1)


@pytest.mark.parametrize("traffic", [Traffic(0.1), Traffic(0.0)], ids=["computes only", "does nothing"])
def test_a_job_that_sends_nothing_is_not_sensitive(build, traffic):
    assert sensitivity(traffic, 4, Fabric(build([[4] * 4] * 4))) == 1


def test_congestion_raises_sensitivity(build):
    cluster, traffic = build([[4] * 4] * 4), Traffic(0.05, 1e9)
    assert sensitivity(traffic, 4, Fabric(cluster, 10)) > 2 * sensitivity(traffic, 4, Fabric(cluster))


def test_a_job_behind_narrow_cards_may_be_faster_spread_out(build):
    tiers = Tier("machine", 2e9), Tier("network", 25e9)
    cluster = build([[4] * 4], tiers, nics=dict.fromkeys(range(4), 1e9))
    assert sensitivity(Traffic(0.01, all_to_all_bytes=1e9), 8, Fabric(cluster)) < 1
