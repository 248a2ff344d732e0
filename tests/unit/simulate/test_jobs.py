"""What a trace says of jobs, as the scheduler sees it: sizes, tiers, estimates, models and what distance costs."""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.network.fabric import Fabric
from berth.network.iteration import iteration_time
from berth.network.placement import Placement
from berth.simulate.engine_state import NetworkMode
from berth.simulate.jobs import best_placements, draw_models, nearest_tier, read_jobs, too_large
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs
from berth.testing.policies import EXERCISES
from berth.workload.mix import load_mix
from berth.workload.profiles import load_profile
from berth.workload.trace import Trace

MIX = load_mix("balanced")


def read(rows: list, machines: object, network: int = NetworkMode.OFF, **more: object):
    found = cluster(machines) if not isinstance(machines, str) else load_cluster(machines)
    return read_jobs(jobs(rows), found, Fabric(found), network, MIX, **more)


@pytest.mark.parametrize(
    ("machines", "gpus", "tier"),
    [
        ([4, 4], 4, 0),
        ([4, 4], 5, 1),
        ([4, 4], 8, 1),
        ([4, 4], 9, None),
        ([[4, 4], [8]], 8, 0),
        ([[4, 4], [6]], 8, 1),
        ([[4, 4], [6]], 9, 2),
        ([[4, 4], [6]], 15, None),
        ([{"T4": 4, "H100": 2}, {"T4": 2, "H100": 4}], 4, 0),  # devices of a gang are of one type
        ([{"T4": 4, "H100": 2}, {"T4": 2, "H100": 4}], 6, 1),
        ([{"T4": 4, "H100": 2}, {"T4": 2, "H100": 4}], 7, None),
    ],
)
def test_the_nearest_tier_is_the_first_that_holds_a_gang_of_one_type(machines, gpus, tier):
    assert nearest_tier(cluster(machines), gpus) == tier


def test_jobs_that_no_tier_holds_are_named():
    trace = jobs([(0, 9, 10), (0, 8, 10), (0, 1, 10), (0, 99, 10)])
    assert too_large(trace, cluster([4, 4])) == ("j0", "j3")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (2, {0: {0: 2}, 1: {0: 1, 1: 1}, 2: {0: 1, 2: 1}}),
        (4, {0: {0: 4}, 1: {0: 2, 1: 2}, 2: {0: 2, 2: 2}}),
        (6, {1: {0: 3, 1: 3}, 2: {0: 3, 2: 3}}),
        (12, {2: {0: 4, 2: 4, 3: 4}}),
    ],
)
def test_the_best_placement_at_each_tier_is_on_as_few_machines_as_hold_it_and_even(gpus, expected):
    found = best_placements(cluster([[4, 4], [4, 4]]), gpus)
    counts = {
        tier: dict(zip(placement.machines.tolist(), placement.counts.tolist(), strict=True))
        for tier, placement in found.items()
    }
    assert counts == expected


def test_the_best_placements_of_one_type_are_on_its_own_machines():
    machines = cluster([[{"A100": 8}, {"A100": 8}], [{"V100": 1}] * 4])
    sizes = {
        kind: {tier: len(one.machines) for tier, one in best_placements(machines, 4, (kind,)).items()}
        for kind in (0, 1)
    }
    assert sizes[1] == {1: 4}
    assert sizes[0][0] == 1
    assert best_placements(machines, 8, (1,)) == {}


@pytest.mark.parametrize("model", ["vgg16", "bert-large"])
def test_the_slowdown_of_a_tier_is_its_iteration_over_the_nearest(model):
    machines = load_cluster("2x2x4:V100-16")
    found = read([(0, 4, 100, model)], "2x2x4:V100-16", NetworkMode.STATIC)
    traffic = load_profile(model).traffic(machines.device_types[0])
    fabric = Fabric(machines)
    seconds = [
        iteration_time(traffic, Placement.of_counts(counts), fabric).seconds
        for counts in ({0: 4}, {0: 2, 1: 2}, {0: 2, 2: 2})
    ]
    assert found.records["slowdown"][0][:3].tolist() == pytest.approx(
        [s / seconds[0] for s in seconds], rel=1e-12
    )
    assert found.records["slowdown"][0][3:].tolist() == [found.records["slowdown"][0][2]] * 5
    assert found.records["compute_share"][0] == pytest.approx(traffic.compute_s / seconds[0], rel=1e-12)
    assert found.records["message_bytes"][0] == traffic.bytes
    assert found.records["skew"][0] == load_profile(model).skew


@pytest.mark.parametrize("network", [NetworkMode.OFF, NetworkMode.STATIC, NetworkMode.SHARED])
def test_a_single_device_sends_nothing_and_is_slowed_by_nothing(network):
    found = read([(0, 1, 100, "vgg16")], "2x2x4:V100-16", network).records[0]
    assert found["slowdown"].tolist() == [1.0] * 8
    assert (found["message_bytes"], found["compute_share"]) == (0.0, 1.0)


def test_without_a_network_no_gang_is_slowed():
    found = read([(0, 8, 100, "vgg16")], "2x2x4:V100-16", NetworkMode.OFF).records[0]
    assert found["slowdown"].tolist() == [1.0] * 8
    assert found["message_bytes"] == 0.0


def test_shapes_are_three_points_from_the_best_to_one_with_a_single_device():
    # Ten of machines of eight: 5 + 5, 8 + 2 and 5 + 4 + 1; imbalance (n - 1) / (n x smallest part).
    machines = load_cluster("2x4x8:V100-16")
    fabric, traffic = Fabric(machines, 50.0), load_profile("vgg16").traffic(machines.device_types[0])
    found = read_jobs(jobs([(0, 10, 100, "vgg16")]), machines, fabric, NetworkMode.STATIC, MIX).records[0]
    seconds = [
        iteration_time(traffic, Placement.of_counts(counts), fabric).seconds
        for counts in ({0: 5, 1: 5}, {0: 8, 1: 2}, {0: 5, 1: 4, 2: 1})
    ]
    assert found["shape_imbalance"].tolist() == pytest.approx([1 / (2 * 5), 1 / (2 * 2), 2 / 3])
    assert found["shape_slowdown"].tolist() == pytest.approx([s / seconds[0] for s in seconds], rel=1e-12)
    assert found["shape_slowdown"][2] > 1.5


def test_estimates_are_off_by_at_most_the_error_and_differ_between_jobs():
    rows = [(number, 1, 100.0) for number in range(2000)]
    found = read(rows, [4], estimate_error=0.3, seed=5).records
    error = found["estimate_error"]
    assert error.min() >= 0.7
    assert error.max() <= 1.3
    assert error.mean() == pytest.approx(1.0, abs=0.02)  # even on both sides
    assert np.quantile(error, [0.25, 0.75]).tolist() == pytest.approx([0.85, 1.15], abs=0.03)
    assert found["estimated_remaining_s"].tolist() == (100.0 * error).tolist()
    assert found["true_remaining_s"].tolist() == [100.0] * 2000
    assert read(rows, [4], estimate_error=0.3, seed=5).records["estimate_error"].tolist() == error.tolist()
    assert read(rows, [4], estimate_error=0.3, seed=6).records["estimate_error"].tolist() != error.tolist()


def test_wrong_estimates_change_the_order_and_no_duration():
    rows = [(0, 1, 1.0), *((0, 1, 100.0 + number) for number in range(30))]
    setting = Setting(network="off", estimate_error=0.9, seed=3)
    run = simulate(jobs(rows), cluster([1]), EXERCISES["least-left"], setting)
    assert run.records["end_s"].max() == sum(seconds for _, _, seconds in rows)
    assert run.records["evictions"].sum() == 0  # what runs has less and less left, by any estimate
    estimated = [row[2] * error for row, error in zip(rows, run.records["estimate_error"], strict=True)]
    first = int(run.records["first_start_s"].argmin())
    assert np.argsort(run.records["first_start_s"]).tolist() == sorted(
        range(31), key=lambda row: (row != first, estimated[row])
    )
    assert np.argsort(run.records["first_start_s"]).tolist() != list(range(31))


def test_users_are_numbered_as_they_appear_and_priorities_default_to_nothing():
    columns = {
        "job_id": list("abcd"),
        "submit_s": [0.0, 1.0, 2.0, 3.0],
        "num_gpu": [1] * 4,
        "duration_s": [10.0] * 4,
        "user": ["bob", None, "ann", "bob"],
        "priority": [None, 3, -2, None],
    }
    found = read_jobs(
        Trace.from_columns(columns, source="test"), cluster([4]), Fabric(cluster([4])), NetworkMode.OFF, MIX
    ).records
    assert found["user"].tolist() == [0, 1, 2, 0]
    assert found["priority"].tolist() == [0, 3, -2, 0]


def test_models_are_drawn_only_for_jobs_that_name_none_and_the_same_for_a_seed():
    trace = jobs([(number, 1, 10.0, "vgg16" if number % 2 else None) for number in range(400)])
    models, drawn = draw_models(trace, MIX, 1)
    assert drawn == 200
    assert set(models[1::2]) == {"vgg16"}
    assert set(models[::2]) <= set(MIX.models)
    assert len(set(models[::2])) > 1
    assert draw_models(trace, MIX, 1)[0].tolist() == models.tolist()
    assert draw_models(trace, MIX, 2)[0].tolist() != models.tolist()


def test_a_duration_is_the_work_of_a_job_and_its_checkpoint_before_it_starts():
    found = read([(5, 2, 70.0)], [4]).records[0]
    for name in ("work_s", "true_remaining_s", "estimated_remaining_s", "checkpointed_remaining_s"):
        assert found[name] == 70.0, name
    assert (found["arrival_s"], found["gpus"], found["widest_tier"], found["tier"]) == (5.0, 2, 1, -1)
