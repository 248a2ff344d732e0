"""What must hold of every collective, whatever the cluster and the placement."""

from __future__ import annotations

import numpy as np
import pytest
from collectives import all_reduce_s, all_to_all_s, hierarchical_ring_s, server_s, tree_s
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from berth.cluster.model import Cluster, DeviceType, Machine, Tier
from berth.network.fabric import Fabric
from berth.network.flow import flow_of
from berth.network.iteration import iteration_time
from berth.network.placement import Placement
from berth.network.traffic import Traffic

pytestmark = pytest.mark.slow

untimed = settings(deadline=None)
RACKS, MACHINES, SIZE = 4, 4, 8
TIMES = (all_reduce_s, hierarchical_ring_s, tree_s, all_to_all_s, server_s)
VOLUMES = st.floats(1.0, 1e11)
BANDWIDTHS = st.lists(st.floats(1e8, 1e12), min_size=3, max_size=3).map(
    lambda rates: sorted(rates, reverse=True)
)
LATENCIES = st.lists(st.floats(0, 1e-3), min_size=3, max_size=3).map(sorted)


def cluster_of(bandwidths, latencies=(0.0, 0.0, 0.0), oversubscription=1.0, nic=None, rack_of=None):
    count = RACKS * MACHINES
    factors = (1.0, 1.0, oversubscription)
    names = ("machine", "rack", "network")
    racks = rack_of if rack_of is not None else [machine // MACHINES for machine in range(count)]
    return Cluster(
        "property",
        (DeviceType("A100"),),
        tuple(Tier(*facts) for facts in zip(names, bandwidths, latencies, factors, strict=True)),
        tuple(Machine(f"m{i}", ((0, SIZE),), nic_bytes_per_s=nic) for i in range(count)),
        np.array([range(count), racks, [0] * count], dtype=np.int32),
        (tuple(f"m{i}" for i in range(count)), tuple(f"r{i}" for i in range(RACKS)), ("all",)),
    )


@st.composite
def fabrics(draw, latency=True):
    nic = draw(st.one_of(st.none(), st.floats(1e8, 1e12)))
    latencies = draw(LATENCIES) if latency else (0.0, 0.0, 0.0)
    return Fabric(cluster_of(draw(BANDWIDTHS), latencies, draw(st.floats(1, 8)), nic), draw(st.floats(1, 50)))


PLACEMENTS = st.dictionaries(
    st.integers(0, RACKS * MACHINES - 1), st.integers(1, SIZE), min_size=1, max_size=8
).map(Placement.of_counts)


@untimed
@given(VOLUMES, st.integers(2, SIZE), BANDWIDTHS, LATENCIES)
def test_one_tier_is_the_textbook_s_ring_to_the_last_bit(volume, n, bandwidths, latencies):
    fabric = Fabric(cluster_of(bandwidths, latencies))
    inside = 2.0 * (n - 1) / n * volume / bandwidths[0] + 2.0 * (n - 1) * latencies[0]
    assert all_reduce_s(volume, Placement.of_counts({0: n}), fabric) == inside
    n = min(n, MACHINES)
    between = 2.0 * (n - 1) / n * volume / bandwidths[1] + 2.0 * (n - 1) * latencies[1]
    assert all_reduce_s(volume, Placement.of_counts(dict.fromkeys(range(n), 1)), fabric) == between


@untimed
@given(VOLUMES, fabrics(), st.integers(2, MACHINES), st.integers(1, SIZE))
def test_the_same_counts_at_a_farther_tier_are_never_faster(volume, fabric, machines, each):
    """The same machines of one rack, then one of each rack: for every collective."""
    near = Placement.of_counts(dict.fromkeys(range(machines), each))
    far = Placement.of_counts({MACHINES * rack: each for rack in range(machines)})
    for seconds in TIMES:
        assert seconds(volume, far, fabric) >= seconds(volume, near, fabric) * (1 - 1e-12)


@untimed
@given(VOLUMES, fabrics(latency=False), st.integers(2, MACHINES), st.integers(1, SIZE), st.data())
def test_moving_some_machines_to_other_racks_never_sends_faster(volume, fabric, machines, each, data):
    """Without latencies: a longer hierarchy has fewer steps, which may outweigh a little more latency."""
    near = Placement.of_counts(dict.fromkeys(range(machines), each))
    racks = data.draw(st.lists(st.integers(0, RACKS - 1), min_size=machines, max_size=machines))
    far = Placement.of_counts({rack * MACHINES + slot: each for slot, rack in enumerate(racks)})
    for seconds in (all_reduce_s, tree_s, all_to_all_s, server_s):
        assert seconds(volume, far, fabric) >= seconds(volume, near, fabric) * (1 - 1e-12)


@untimed
@given(VOLUMES, fabrics(), PLACEMENTS, st.floats(1, 100))
def test_more_bytes_and_more_congestion_never_take_less(volume, fabric, placement, factor):
    congested = Fabric(fabric.cluster, fabric.congestion * factor)
    for seconds in TIMES:
        base = seconds(volume, placement, fabric)
        assert seconds(volume * factor, placement, fabric) >= base * (1 - 1e-12)
        assert seconds(volume, placement, congested) >= base * (1 - 1e-12)


@untimed
@given(VOLUMES, BANDWIDTHS, LATENCIES, PLACEMENTS, st.integers(0, 2), st.floats(1, 10))
def test_more_bandwidth_is_never_slower(volume, bandwidths, latencies, placement, tier, factor):
    wider = [rate * (factor if position <= tier else 1) for position, rate in enumerate(bandwidths)]
    slow, fast = (Fabric(cluster_of(rates, latencies, 2.0)) for rates in (bandwidths, wider))
    for seconds in TIMES:
        assert seconds(volume, placement, fast) <= seconds(volume, placement, slow) * (1 + 1e-12)


@untimed
@given(VOLUMES, BANDWIDTHS, PLACEMENTS, st.floats(0.001, 1000))
def test_without_latency_time_scales_with_bytes_over_bandwidth(volume, bandwidths, placement, factor):
    fabric = Fabric(cluster_of(bandwidths))
    faster = Fabric(cluster_of([rate * factor for rate in bandwidths]))
    for seconds in TIMES:
        base = seconds(volume, placement, fabric)
        assert seconds(volume * factor, placement, fabric) == pytest.approx(base * factor, rel=1e-9)
        assert seconds(volume, placement, faster) == pytest.approx(base / factor, rel=1e-9)


@untimed
@given(VOLUMES, fabrics(), PLACEMENTS)
def test_no_collective_is_faster_than_the_slowest_link_allows(volume, fabric, placement):
    """Every machine must learn the whole sum, and a device must send most of its vector at least once."""
    assume(len(placement.machines) > 1)
    net = fabric.arrays
    per_machine = np.minimum(placement.counts * net.peak[1], net.nic[placement.machines])
    bound = volume / per_machine.min()
    for seconds in (all_reduce_s, hierarchical_ring_s, tree_s):
        assert seconds(volume, placement, fabric) >= bound * (1 - 1e-12)


@untimed
@given(VOLUMES, fabrics(), PLACEMENTS, st.permutations(range(RACKS)), st.permutations(range(MACHINES)))
def test_which_racks_and_machines_is_the_same(volume, fabric, placement, racks, machines):
    moved = Placement.of_counts(
        {
            racks[machine // MACHINES] * MACHINES + machines[machine % MACHINES]: count
            for machine, count in zip(placement.machines.tolist(), placement.counts.tolist(), strict=True)
        }
    )
    for seconds in TIMES:
        assert seconds(volume, moved, fabric) == seconds(volume, placement, fabric)


@untimed
@given(fabrics(), PLACEMENTS, st.permutations(range(RACKS * MACHINES)))
def test_the_order_of_machines_in_the_cluster_does_not_matter(fabric, placement, order):
    racks = np.empty(len(order), dtype=int)
    racks[list(order)] = [machine // MACHINES for machine in range(len(order))]
    tiers = fabric.cluster.tiers
    shuffled = cluster_of(
        [tier.bytes_per_s for tier in tiers],
        [tier.latency_s for tier in tiers],
        tiers[2].oversubscription,
        fabric.cluster.machines[0].nic_bytes_per_s,
        racks,
    )
    moved = Placement.of_counts(
        {
            order[m]: count
            for m, count in zip(placement.machines.tolist(), placement.counts.tolist(), strict=True)
        }
    )
    for seconds in TIMES:
        there = seconds(1e9, moved, Fabric(shuffled, fabric.congestion))
        assert there == pytest.approx(seconds(1e9, placement, fabric), rel=1e-12)


@untimed
@given(fabrics(), PLACEMENTS, st.just(0.0) | st.floats(1e-9, 10), st.floats(1, 50))
def test_an_iteration_lies_between_the_longer_part_and_the_sum(fabric, placement, compute_s, overlap):
    found = iteration_time(Traffic(compute_s, 1e9, 1e8, 1e7, overlap=overlap), placement, fabric)
    assert max(found.compute_s, found.comm_s) <= found.seconds * (1 + 1e-12)
    assert found.seconds <= (found.compute_s + found.comm_s) * (1 + 1e-12)
    assert found.exposed_s == found.seconds - found.compute_s


@untimed
@given(fabrics(), PLACEMENTS, st.sampled_from(["ring", "tree"]))
def test_a_job_alone_on_the_links_is_never_slower_than_on_busy_ones(fabric, placement, collective):
    traffic = Traffic(0.1, 1e9, 2e8, 1e8, collective)
    flow = flow_of(traffic, placement, fabric)
    assert flow.alone_comm_s <= iteration_time(traffic, placement, fabric).comm_s * (1 + 1e-9)
    assert (flow.weights * flow.cap <= fabric.arrays.capacity[flow.links] * (1 + 1e-9)).all()
