"""What a cluster becomes when it is compiled for the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from berth.cluster.model import Tier
from berth.errors import InputError
from berth.network.fabric import Fabric


def test_busy_rates_are_divided_by_oversubscription_and_peak_rates_are_not(build):
    arrays = Fabric(build([[8, 8], [8, 8]])).arrays
    assert arrays.peak.tolist() == [300e9, 25e9, 12.5e9]
    assert arrays.busy.tolist() == [300e9, 25e9, 12.5e9 / 4]
    assert arrays.latency_s.tolist() == [1e-6, 2e-6, 5e-6]


def test_congestion_spares_the_machine_and_divides_everything_above_it(build):
    cluster = build([[8], [8]], nics={0: 50e9})
    free, busy = Fabric(cluster).arrays, Fabric(cluster, 5).arrays
    assert busy.peak[0] == free.peak[0]
    assert np.allclose(busy.peak[1:] * 5, free.peak[1:])
    assert np.allclose(busy.capacity * 5, free.capacity)
    assert busy.nic.tolist() == [10e9, math.inf]


@pytest.mark.parametrize("congestion", [0.5, 0, -1, math.nan, math.inf])
def test_congestion_below_one_is_refused(build, congestion):
    with pytest.raises(InputError, match="congestion must be 1 or more"):
        Fabric(build([[8]]), congestion)


def test_a_machine_sends_what_its_devices_can_or_its_card_allows(build):
    arrays = Fabric(build([[8, 4], [8, 8]], nics={2: 50e9})).arrays
    assert arrays.capacity[:4].tolist() == [200e9, 100e9, 50e9, 200e9]


def test_a_rack_sends_the_sum_of_its_machines_over_the_oversubscription(build):
    arrays = Fabric(build([[8, 4], [8, 8]], nics={2: 50e9})).arrays
    assert arrays.capacity[4:].tolist() == [12 * 12.5e9 / 4, (50e9 + 8 * 12.5e9) / 4]
    assert arrays.links.tolist() == [[0, 1, 2, 3], [4, 4, 5, 5]]


def test_a_far_tier_is_never_faster_than_the_nearer_one_on_its_way(build):
    tiers = (Tier("machine", 10e9), Tier("rack", 25e9, oversubscription=5), Tier("network", 100e9))
    arrays = Fabric(build([[8], [8]], tiers)).arrays
    assert arrays.peak.tolist() == [10e9, 25e9, 25e9]
    assert arrays.busy.tolist() == [10e9, 5e9, 5e9]


def test_a_single_machine_has_no_links(build):
    cluster = build([[8]], (Tier("machine", 1e9), Tier("network", 1e9)))
    pool = type(cluster)(
        "p", cluster.device_types, cluster.tiers[:1], cluster.machines, cluster.groups[:1], (("m0",),)
    )
    assert len(Fabric(pool).arrays.capacity) == 0
