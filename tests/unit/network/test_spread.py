"""The ways of spreading a job, and a placement for each."""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.errors import InputError
from berth.network.spread import Spread, realise, spreads, usable_devices


@pytest.mark.parametrize(
    ("racks", "gpus", "expected"),
    [
        ([[8]], 1, [(1, 1, 1)]),
        ([[8, 8]], 2, [(1, 1, 1), (2, 1, 1)]),
        ([[8, 8], [8, 8]], 8, [(1, 1, 1), (2, 1, 1), (2, 2, 1), (4, 2, 1)]),
        ([[8, 8], [8, 8]], 16, [(2, 1, 1), (2, 2, 1), (4, 2, 1)]),
        ([[8, 8], [8, 8]], 32, [(4, 2, 1)]),
        ([[4] * 4] * 4, 4, [(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (4, 2, 1), (4, 4, 1)]),
    ],
)
def test_spreads_run_from_the_nearest_to_the_widest(build, racks, gpus, expected):
    cluster = build(racks)
    assert [spread.groups for spread in spreads(cluster, gpus)] == expected


@pytest.mark.parametrize("gpus", range(1, 41))
def test_every_spread_can_be_realised_on_unlike_machines(build, gpus):
    cluster = build([[1, 8, 2], [16], [4, 4, 4, 1]])
    found = spreads(cluster, gpus)
    assert 1 <= len(found) <= 8
    for spread in found:
        placement = realise(cluster, spread)
        assert placement is not None
        placement.check(cluster)
        assert placement.devices == gpus
        assert placement.groups(cluster) == spread.groups


def test_the_nearest_of_unlike_machines_is_the_one_that_holds_the_job(build):
    cluster = build([[2, 2], [1, 8]])
    nearest = realise(cluster, spreads(cluster, 8)[0])
    assert nearest is not None
    assert nearest.machines.tolist() == [3]


def test_devices_are_split_evenly_and_small_machines_are_filled(build):
    placement = realise(build([[8, 8, 2]]), Spread(14, (3, 1, 1)))
    assert placement is not None
    assert sorted(placement.counts.tolist()) == [2, 6, 6]


@pytest.mark.parametrize(
    "groups",
    [(5, 2, 1), (3, 1, 1), (1, 2, 1), (2, 3, 1)],
    ids=[
        "more machines than there are",
        "more than a rack has",
        "fewer machines than racks",
        "no such racks",
    ],
)
def test_what_the_cluster_does_not_have_is_not_realised(build, groups):
    assert realise(build([[8, 8], [8, 8]]), Spread(8, groups)) is None


def test_a_deep_tree_is_thinned_to_eight_rows_that_keep_both_ends():
    leaves = 32
    levels = [[i >> level for i in range(leaves)] for level in range(6)]
    cluster = Cluster(
        "deep",
        (DeviceType("A100"),),
        tuple(Tier(f"tier{level}", 1e9) for level in range(6)),
        tuple(Machine(f"m{i}", ((0, 4),)) for i in range(leaves)),
        np.array(levels, dtype=np.int32),
        tuple(tuple(f"g{level}.{i}" for i in range(leaves >> level)) for level in range(6)),
    )
    found = spreads(cluster, 4)
    assert len(found) == 8
    assert found[0].groups == (1, 1, 1, 1, 1, 1)
    assert found[-1].groups == (4, 4, 4, 4, 2, 1)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((1, 1, 1), "1 machine"),
        ((2, 1, 1), "2 machines of one rack"),
        ((16, 4, 1), "16 machines in 4 racks"),
    ],
)
def test_a_spread_is_said_in_words(build, groups, words):
    assert Spread(16, groups).words(build([[8]])) == words


def test_words_leave_out_what_there_is_only_one_of():
    cluster = load_cluster("8x8")
    assert Spread(16, (2, 1)).words(cluster) == "2 machines"
    assert Spread(64, (32, 8, 2, 1)).words(load_cluster("2x4x4x8")) == "32 machines, 8 racks, 2 pods"


@pytest.mark.parametrize("gpus", [0, -3])
def test_a_job_without_gpus_is_refused(build, gpus):
    with pytest.raises(InputError, match="at least 1 GPU"):
        spreads(build([[8]]), gpus)


def test_a_job_larger_than_the_cluster_is_an_error_that_names_the_cluster(build):
    with pytest.raises(InputError, match="17 GPUs are asked for, but cluster 'test' has 16") as caught:
        spreads(build([[8, 8]]), 17)
    assert "ask for 16 or fewer" in str(caught.value)


def test_only_devices_of_the_wanted_type_are_used():
    cluster = Cluster(
        "mixed",
        (DeviceType("A100"), DeviceType("V100"), DeviceType("Xeon", kind="cpu")),
        (Tier("machine", 1e9), Tier("network", 1e9)),
        (Machine("a", ((0, 4), (2, 2))), Machine("b", ((1, 8), (0, 1)))),
        np.array([[0, 1], [0, 0]], dtype=np.int32),
        (("a", "b"), ("all",)),
    )
    assert usable_devices(cluster, None).tolist() == [4, 9]
    assert usable_devices(cluster, "A100").tolist() == [4, 1]
    with pytest.raises(InputError, match="but cluster 'mixed' has 5"):
        spreads(cluster, 6, usable_devices(cluster, "A100"))
