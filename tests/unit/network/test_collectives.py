"""The collectives against figures worked out by hand."""

from __future__ import annotations

import pytest
from collectives import (
    all_reduce_s,
    all_to_all_s,
    flat_ring_s,
    hierarchical_ring_s,
    server_s,
    tree_s,
)

from berth.cluster.model import Tier
from berth.errors import InputError
from berth.network.fabric import Fabric
from berth.network.placement import Placement

GB = 1e9
MS = 1e-3
# Round figures, and latencies large enough to be seen.
TIERS = (
    Tier("machine", 100 * GB, 1 * MS),
    Tier("rack", 10 * GB, 2 * MS),
    Tier("network", 5 * GB, 4 * MS, 5.0),
)


def fabric_of(build, **given):
    return Fabric(build([[8] * 4, [8] * 4], TIERS, **given))


def placed(*counts, start=0):
    return Placement.of_counts({start + machine: count for machine, count in enumerate(counts)})


@pytest.mark.parametrize(
    ("placement", "seconds"),
    [
        ({0: 1}, 0),
        ({0: 4}, 2 * 3 / 4 * 1 / 100 + 6 * MS),
        ({0: 1, 1: 1, 2: 1, 3: 1}, 2 * 3 / 4 * 1 / 10 + 2 * 3 * 2 * MS),
        ({0: 4, 1: 4}, (1.5 / 100 + 6 * MS) + (1 * 1 / 40 + 2 * 2 * MS)),
        ({0: 1, 4: 1}, 1 / 1 + 2 * 4 * MS),
        # Two machines of four GPUs in each rack: shards of 1/4, then of 1/8.
        ({0: 4, 1: 4, 4: 4, 5: 4}, (1.5 / 100 + 6 * MS) + (1 / 40 + 4 * MS) + (0.5 / 4 + 8 * MS)),
        # 6+2: the machine with fewest GPUs sends the largest shards, the one with most rings longest inside.
        ({0: 6, 1: 2}, (2 * 5 / 6 / 100 + 10 * MS) + (1 / 20 + 4 * MS)),
    ],
    ids=["alone", "one machine", "one each", "4+4", "two racks", "4+4 | 4+4", "6+2"],
)
def test_the_hierarchical_ring_adds_one_stage_per_tier(build, placement, seconds):
    found = hierarchical_ring_s(1 * GB, Placement.of_counts(placement), fabric_of(build))
    assert found == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("placement", "seconds"),
    [
        ({0: 1}, 0),
        ({0: 4}, 1.5 / 100 + 6 * MS),
        ({0: 4, 1: 4}, 2 * 7 / 8 / 40 + 14 * 2 * MS),
        ({0: 6, 1: 2}, 2 * 7 / 8 / 20 + 14 * 2 * MS),
        ({0: 1, 1: 1, 4: 1}, 2 * 2 / 3 / 1 + 4 * 4 * MS),
    ],
    ids=["alone", "one machine", "4+4", "6+2", "1+1 | 1"],
)
def test_the_flat_ring_runs_at_its_narrowest_step(build, placement, seconds):
    found = flat_ring_s(1 * GB, Placement.of_counts(placement), fabric_of(build))
    assert found == pytest.approx(seconds, rel=1e-12)


def test_a_ring_is_the_faster_of_the_two(build):
    fabric = fabric_of(build)
    for placement in (placed(4, 4), placed(1, 1, 1, 1, 1), placed(8, 1)):
        both = [ring(1 * GB, placement, fabric) for ring in (hierarchical_ring_s, flat_ring_s)]
        assert all_reduce_s(1 * GB, placement, fabric) == min(both)


@pytest.mark.parametrize(
    ("placement", "seconds"),
    [
        ({0: 1}, 0),
        ({0: 8}, 2 / 100 + 2 * 3 * 1 * MS),
        ({0: 4, 1: 4}, 2 / 40 + 2 * (2 * 1 + 1 * 2) * MS),
        ({0: 1, 1: 1, 2: 1, 4: 1}, 2 / 1 + 2 * (2 * 2 + 1 * 4) * MS),
    ],
    ids=["alone", "one machine", "4+4", "1+1+1 | 1"],
)
def test_a_tree_sends_twice_the_vector_in_logarithmically_many_steps(build, placement, seconds):
    found = tree_s(1 * GB, Placement.of_counts(placement), fabric_of(build))
    assert found == pytest.approx(seconds, rel=1e-12)
    assert all_reduce_s(1 * GB, Placement.of_counts(placement), fabric_of(build), "tree") == found


@pytest.mark.parametrize(
    ("placement", "seconds"),
    [
        ({0: 1}, 0),
        ({0: 4}, 1 / 100 + 3 * MS),
        ({0: 1, 1: 1}, 1 / 10 + 2 * MS),
        ({0: 4, 1: 4}, 4 / 7 / 10 + (3 * 1 + 4 * 2) * MS),
        ({0: 1, 1: 1, 4: 1, 5: 1}, 2 / 3 / 1 + (1 * 2 + 2 * 4) * MS),
    ],
    ids=["alone", "one machine", "1+1", "4+4", "1+1 | 1+1"],
)
def test_an_all_to_all_takes_as_long_as_its_most_loaded_link(build, placement, seconds):
    found = all_to_all_s(1 * GB, Placement.of_counts(placement), fabric_of(build))
    assert found == pytest.approx(seconds, rel=1e-12)


def test_servers_are_pulled_from_and_pushed_to(build):
    # Each of four devices holds a quarter, so three quarters of what it pulls come from the others.
    found = server_s(1 * GB, placed(1, 1, 1, 1), fabric_of(build))
    assert found == pytest.approx(2 * (0.75 / 10 + 3 * 2 * MS), rel=1e-12)
    assert server_s(1 * GB, placed(1), fabric_of(build)) == 0


def test_a_network_card_is_shared_by_the_job_s_devices_on_the_machine(build):
    fabric = fabric_of(build, nics={0: 20 * GB})
    one_each = hierarchical_ring_s(1 * GB, placed(1, 1), fabric)
    four_each = hierarchical_ring_s(1 * GB, placed(4, 4), fabric)
    assert one_each == pytest.approx(1 / 10 + 4 * MS, rel=1e-12)  # 10 GB/s of the device, not 20 of the card
    assert four_each == pytest.approx((1.5 / 100 + 6 * MS) + (1 / 20 + 4 * MS), rel=1e-12)


def test_a_network_card_is_oversubscribed_beyond_the_rack_like_any_link(build):
    fabric = fabric_of(build, nics={0: 4 * GB})
    placement = Placement.of_counts({0: 8, 4: 8})
    between_racks = 1 / (4 / 5) + 2 * 4 * MS  # 4 GB/s of the card, not 8 x 5 of the devices, over 5
    assert hierarchical_ring_s(1 * GB, placement, fabric) == pytest.approx(
        (1.75 / 100 + 14 * MS) + between_racks, rel=1e-12
    )


def test_machines_of_one_rack_need_not_be_neighbours_in_the_list(build):
    neighbours = build([[4, 4], [4, 4]], TIERS)
    shuffled = build([[4, 4], [4, 4]], TIERS, rack_of=[0, 1, 0, 1])
    near = hierarchical_ring_s(1 * GB, Placement.of_counts({0: 2, 1: 2}), Fabric(neighbours))
    assert hierarchical_ring_s(1 * GB, Placement.of_counts({0: 2, 2: 2}), Fabric(shuffled)) == near
    whole = Placement.of_counts(dict.fromkeys(range(4), 2))
    assert all_to_all_s(1 * GB, whole, Fabric(shuffled)) == all_to_all_s(1 * GB, whole, Fabric(neighbours))
    assert all_reduce_s(1 * GB, whole, Fabric(shuffled)) == all_reduce_s(1 * GB, whole, Fabric(neighbours))


@pytest.mark.parametrize("volume", [-1.0, float("nan")])
def test_a_volume_below_zero_is_refused(build, volume):
    with pytest.raises(InputError, match="0 bytes or more"):
        all_reduce_s(volume, placed(2), fabric_of(build))


def test_a_placement_outside_the_cluster_is_refused(build):
    with pytest.raises(InputError, match="machine 9"):
        all_reduce_s(1.0, placed(1, start=9), fabric_of(build))
