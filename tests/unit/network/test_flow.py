"""What a job loads the links with, and what a rate means for it."""

from __future__ import annotations

import pytest

from berth.cluster.model import Tier
from berth.native.kernels import entry
from berth.network.fabric import Fabric
from berth.network.flow import alone_s, flow_of
from berth.network.iteration import communication_s, iteration_time
from berth.network.placement import Placement
from berth.network.traffic import Traffic

GB = 1e9
TIERS = (Tier("machine", 100 * GB), Tier("rack", 10 * GB), Tier("network", 5 * GB, oversubscription=5.0))


@pytest.fixture(name="fabric")
def _fabric(build):
    # Links 0-7 are the machines' (80 GB/s), 8 and 9 the racks' (4 * 8 * 5 / 5 = 32 GB/s).
    return Fabric(build([[8] * 4, [8] * 4], TIERS))


def test_a_job_inside_one_machine_crosses_no_link(fabric):
    flow = flow_of(Traffic(0.1, 1 * GB, 1 * GB), Placement.of_counts({3: 4}), fabric)
    assert len(flow.links) == 0
    assert flow.alone_comm_s == communication_s(
        Traffic(0.1, 1 * GB, 1 * GB), Placement.of_counts({3: 4}), fabric
    )


def test_a_ring_in_one_rack_crosses_each_machine_once(fabric):
    flow = flow_of(Traffic(0.0, 1 * GB), Placement.of_counts({1: 2, 2: 2, 3: 2}), fabric)
    assert flow.links.tolist() == [1, 2, 3]
    assert flow.weights.tolist() == [1, 1, 1]


def test_a_ring_over_racks_sends_shards_between_them(fabric):
    # Per byte of the vector: each machine sends 1 in its rack and 1/2 beyond, each rack 1 beyond.
    flow = flow_of(Traffic(0.0, 1 * GB), Placement.of_counts({0: 2, 1: 2, 4: 2, 5: 2}), fabric)
    assert flow.links.tolist() == [0, 1, 4, 5, 8, 9]
    assert flow.weights == pytest.approx([1, 1, 1, 1, 1 / 1.5, 1 / 1.5])


def test_a_flat_ring_crosses_every_link_with_the_same_bytes(build):
    # 1 | 1+1+1: between racks the lone machine would have to send whole vectors, so the flat ring wins.
    fabric = Fabric(build([[8] * 4, [8] * 4], (*TIERS[:2], Tier("network", 10 * GB))))
    flow = flow_of(Traffic(0.0, 1 * GB), Placement.of_counts({0: 1, 4: 1, 5: 1, 6: 1}), fabric)
    assert flow.links.tolist() == [0, 4, 5, 6, 8, 9]
    assert flow.weights.tolist() == [1] * 6
    assert flow.volume_bytes == pytest.approx(1.5 * GB)


def test_a_tree_crosses_every_link_with_twice_the_vector(fabric):
    flow = flow_of(Traffic(0.0, 1 * GB, collective="tree"), Placement.of_counts({0: 4, 4: 2, 5: 2}), fabric)
    assert flow.weights.tolist() == [1] * len(flow.links)
    assert flow.volume_bytes == 2 * GB


def test_an_all_to_all_loads_a_link_with_what_leaves_behind_it(fabric):
    flow = flow_of(Traffic(0.0, all_to_all_bytes=3 * GB), Placement.of_counts({0: 2, 1: 1, 4: 1}), fabric)
    loads = dict(zip(flow.links.tolist(), (flow.weights * flow.volume_bytes / GB).tolist(), strict=True))
    assert loads == pytest.approx({0: 4, 1: 3, 4: 3, 8: 3, 9: 3})


def test_servers_load_the_links_twice(fabric):
    placement = Placement.of_counts({0: 1, 1: 1})
    pushed = flow_of(Traffic(0.0, server_bytes=2 * GB), placement, fabric)
    exchanged = flow_of(Traffic(0.0, all_to_all_bytes=2 * GB), placement, fabric)
    assert pushed.volume_bytes == exchanged.volume_bytes  # half of it stays, but it goes twice


@pytest.mark.parametrize("counts", [{0: 4, 1: 4}, {0: 1, 1: 1, 2: 1}, {0: 8, 1: 2}], ids=str)
@pytest.mark.parametrize("collective", ["ring", "tree"])
def test_alone_in_a_rack_a_shared_iteration_is_the_plain_one(fabric, counts, collective):
    traffic = Traffic(0.1, 1 * GB, 2 * GB, 3 * GB, collective)
    placement = Placement.of_counts(counts)
    flow = flow_of(traffic, placement, fabric)
    plain = iteration_time(traffic, placement, fabric).seconds
    assert alone_s(traffic, flow) == pytest.approx(plain, rel=1e-12)


def test_alone_between_racks_a_job_has_the_whole_link_not_its_busy_share(fabric):
    traffic, placement = Traffic(0.0, 1 * GB), Placement.of_counts({0: 1, 4: 1})
    flow = flow_of(traffic, placement, fabric)
    assert flow.alone_comm_s == pytest.approx(1 / 5)  # at 5 GB/s
    assert iteration_time(traffic, placement, fabric).seconds == pytest.approx(1 / 1)  # at 5 / 5 GB/s


def test_a_link_narrower_than_the_job_bounds_its_cap(fabric):
    # All 32 GPUs of each rack: 32 * 5 GB/s are wanted, the rack's link has 32.
    traffic, placement = Traffic(0.0, 1 * GB), Placement.of_counts(dict.fromkeys(range(8), 8))
    flow = flow_of(traffic, placement, fabric)
    between_racks_s = 1 / 32
    assert flow.alone_comm_s > between_racks_s
    assert (flow.weights * flow.cap <= fabric.arrays.capacity[flow.links]).all()


@pytest.mark.parametrize("counts", [{0: 5, 4: 3}, {0: 1, 1: 7, 4: 8}, {0: 8, 1: 8, 4: 8, 5: 8}], ids=str)
def test_the_ring_that_is_faster_alone_is_chosen(fabric, counts):
    from berth.network import _flow_kernels as kernels

    placement = Placement.of_counts(counts)
    chosen = flow_of(Traffic(0.0, 1 * GB), placement, fabric).alone_comm_s
    where = placement.machines, placement.counts, fabric.arrays
    nested = sum(kernels.flow(1 * GB, 0.0, 0.0, kernels.HIERARCHICAL, *where)[2:])
    assert chosen <= nested * (1 + 1e-12)


@pytest.mark.parametrize("counts", [{0: 1}, {0: 1, 4: 1}], ids=["alone", "silent"])
def test_a_job_that_sends_nothing_has_no_links(fabric, counts):
    traffic = Traffic(0.1, 1 * GB) if len(counts) == 1 else Traffic(0.1)
    flow = flow_of(traffic, Placement.of_counts(counts), fabric)
    assert (len(flow.links), flow.volume_bytes, flow.alone_comm_s) == (0, 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [0, 1, 2])
@pytest.mark.parametrize("counts", [{0: 5}, {0: 3, 2: 1}, {0: 8, 1: 1, 4: 2, 7: 3}], ids=str)
def test_compiled_and_interpreted_kernels_agree(fabric, counts, algorithm):
    from berth.network import _flow_kernels, _kernels, compiled

    placement = Placement.of_counts(counts)
    where = placement.machines, placement.counts, fabric.arrays
    tree = algorithm == 2
    functions = compiled.communication_s, compiled.flow, compiled.overlapped_s
    communication_s, flow, overlapped_s = (entry(function.py_func) for function in functions)
    plain, fast = (one(1e9, 2e8, 3e7, tree, *where) for one in (_kernels.communication_s, communication_s))
    assert fast == pytest.approx(plain, rel=1e-14)
    plain, fast = (one(1e9, 2e8, 3e7, algorithm, *where) for one in (_flow_kernels.flow, flow))
    assert fast[0].tolist() == plain[0].tolist()
    assert fast[1] == pytest.approx(plain[1], rel=1e-14)
    assert fast[2:] == pytest.approx(plain[2:], rel=1e-14)
    assert overlapped_s(3.0, 4.0, 2.5, 0.25) == pytest.approx(
        _kernels.overlapped_s(3.0, 4.0, 2.5, 0.25), rel=1e-14
    )
