"""Placements, and how far they reach."""

from __future__ import annotations

import pytest

from berth.errors import InputError
from berth.network.placement import Placement


@pytest.mark.parametrize(
    ("counts", "groups", "tier"),
    [
        ({0: 1}, (1, 1, 1), 0),
        ({0: 3}, (1, 1, 1), 0),
        ({1: 1, 0: 1}, (2, 1, 1), 1),
        ({2: 1, 0: 2, 1: 1}, (3, 2, 1), 2),
    ],
)
def test_a_placement_reaches_the_nearest_tier_around_its_machines(build, counts, groups, tier):
    cluster = build([[8, 8], [8, 8]])
    placement = Placement.of_counts(counts)
    assert placement.machines.tolist() == sorted(counts)
    assert placement.counts.tolist() == [counts[machine] for machine in sorted(counts)]
    assert placement.groups(cluster) == groups
    assert placement.tier(cluster) == tier
    assert placement.devices == sum(counts.values())


@pytest.mark.parametrize("counts", [{}, {0: 0}, {0: -1}, {-1: 1}])
def test_counts_need_a_device_on_every_machine(counts):
    with pytest.raises(InputError):
        Placement.of_counts(counts)


def test_a_placement_that_the_cluster_has_no_room_for_is_refused_by_name(build):
    cluster = build([[8, 2]])
    with pytest.raises(InputError, match="3 devices on m1, which has 2"):
        Placement.of_counts({1: 3}).check(cluster)
    with pytest.raises(InputError, match="machine 2 is not in cluster 'test'"):
        Placement.of_counts({2: 1}).check(cluster)
