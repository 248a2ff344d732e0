"""Durations refer to a stated device, and the order in which a cluster is written changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from berth.cluster.gpus import gpu_part
from berth.cluster.load import load_cluster
from berth.errors import InputError, UnknownNameError
from berth.schedule.policies.registry import load_policy
from berth.simulate.audit import audit
from berth.simulate.reference import reference_device
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import TraceSource
from berth.testing import cluster, jobs
from berth.testing.policies import EXERCISES
from berth.workload.profiles import load_profile

POLICIES = ("fifo", "srtf", "dally", "tiresias", "berth")


def ratio(model: str, device: str, reference: str) -> float:
    """Seconds of one iteration on a device, per second of it on the reference device."""
    profile = load_profile(model)
    return profile.compute(device).value / profile.compute(reference).value


def busy_trace(machines):
    options = "generate:jobs=80,load=1.4,sizes=odd,durations=exponential:1h,mix=balanced,seed=3"
    return TraceSource(options).trace(machines)


MIXED = [[{"H100": 4, "V100": 4}, {"H100": 4, "V100": 4}], [{"V100": 8}, {"V100": 8}]]
TYPES_SWAPPED = [[{"V100": 4, "H100": 4}, {"V100": 4, "H100": 4}], [{"V100": 8}, {"V100": 8}]]
PURE = [[{"H100": 8}, {"H100": 8}], [{"V100": 8}] * 3, [{"V100": 8}] * 3]
RACKS_SWAPPED = [[{"V100": 8}] * 3, [{"H100": 8}, {"H100": 8}], [{"V100": 8}] * 3]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["off", "on"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("written", "otherwise"),
    [(MIXED, TYPES_SWAPPED), (PURE, RACKS_SWAPPED)],
    ids=["types of a machine", "racks of one type each"],
)
def test_the_order_of_the_file_changes_no_finish_time(written, otherwise, policy, network):
    trace, setting = busy_trace(cluster(written)), Setting(network=network, congestion=5.0)
    ends = [
        simulate(trace, cluster(text), load_policy(policy), setting).records["end_s"]
        for text in (written, otherwise)
    ]
    assert (ends[0] > 0).all()
    assert ends[0].tolist() == ends[1].tolist()


@pytest.mark.parametrize("first", ["H100", "V100"])
def test_a_duration_is_that_on_the_reference_device(first):
    other = {"H100": "V100", "V100": "H100"}[first]
    machines = cluster([{first: 1}, {other: 1}])
    trace = jobs([(0, 1, 1000, "resnet50"), (0, 1, 1000, "resnet50")])
    setting = Setting(network="off", reference_device="V100")
    run = simulate(trace, machines, EXERCISES["fit-first"], setting)
    assert run.records["end_s"] == pytest.approx([1000 * ratio("resnet50", "H100", "V100"), 1000.0])


def test_without_a_reference_device_the_most_common_type_is_meant():
    assert reference_device(cluster([{"H100": 4}, {"V100": 8}])).name == "V100-16"
    assert reference_device(cluster([{"V100": 4}, {"H100": 8}])).name == "H100"
    for order in ([{"V100": 4}, {"H100": 4}], [{"H100": 4}, {"V100": 4}]):
        assert reference_device(cluster(order)).name == "H100", "a tie goes by name"


def test_a_core_is_not_a_reference_device():
    assert reference_device(cluster([{"cpu-core": 96, "V100": 4}])).name == "V100-16"
    with pytest.raises(InputError, match="cpu-core is not a GPU"):
        reference_device(cluster([{"V100": 4}]), "cpu-core")


@pytest.mark.parametrize("network", ["off", "static", "on"])
def test_a_trace_of_another_device_runs_as_fast_as_the_cluster_is(network):
    machines = cluster([{"H100": 8}])
    trace = jobs([(0, 1, 1000, "vgg16"), (0, 1, 1000, "resnet50")])
    run = simulate(
        trace, machines, EXERCISES["fit-first"], Setting(network=network, reference_device="V100", log=True)
    )
    expected = [1000 * ratio(model, "H100", "V100") for model in ("vgg16", "resnet50")]
    assert run.records["end_s"] == pytest.approx(expected)
    assert not audit(run).violations


def test_a_gang_scales_by_its_iteration_at_the_nearest_place():
    """A faster device waits longer for the same network: a gang gains less than one device does."""
    machines, setting = cluster([{"H100": 4}] * 2), Setting(network="static", congestion=10.0)
    trace = jobs([(0, 8, 1000, "vgg16")])
    own, slower = (
        simulate(trace, machines, EXERCISES["fit-first"], replace(setting, reference_device=name)).records[
            "end_s"
        ][0]
        for name in (None, "V100")
    )
    assert own == 1000.0
    assert ratio("vgg16", "H100", "V100") < slower / own < 1.0


def test_each_job_may_name_the_device_of_its_duration():
    machines = cluster([{"H100": 1}, {"H100": 1}])
    trace = jobs([(0, 1, 1000, "resnet50"), (0, 1, 1000, "resnet50")])
    named = replace(trace, frame=trace.frame.with_columns(device=np.array(["T4", None], object)))
    run = simulate(named, machines, EXERCISES["fit-first"], Setting(network="off", reference_device="V100"))
    expected = [1000 * ratio("resnet50", "H100", device) for device in ("T4", "V100")]
    assert run.records["end_s"] == pytest.approx(expected)


def test_an_unknown_reference_is_named_with_what_is_near():
    with pytest.raises(UnknownNameError, match="V1000"):
        reference_device(cluster([{"V100": 4}]), "V1000")


def test_a_device_of_the_cluster_comes_before_the_catalogues(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("devices:\n  mine: {flops: 10TFLOPS}\nmachines:\n- {count: 2, devices: {mine: 4}}\n")
    assert reference_device(load_cluster(str(file)), "mine").flops == 1e13


def test_the_fastest_type_comes_first_in_a_simulation():
    part = gpu_part(cluster([{"T4": 2, "H100": 2}, {"V100": 2}]))
    assert [kind.name for kind in part.device_types] == ["H100", "V100-16", "T4"]
    assert part.machines[0].devices == ((0, 2), (2, 2))
    assert part.device_type.tolist() == [0, 0, 2, 2, 1, 1]


def test_the_reference_is_a_unit_and_nothing_else():
    """The same work, written in seconds on a T4 or on an H100, gives the same run."""
    machines = cluster([{"T4": 4}, {"H100": 4}])
    rows = [(10 * number, 1 + number % 3, 1000 + 300 * number, "resnet50") for number in range(12)]
    on_t4 = jobs(rows)
    factor = ratio("resnet50", "H100", "T4")
    on_h100 = jobs([(at, gpus, duration * factor, model) for at, gpus, duration, model in rows])
    ends = [
        simulate(trace, machines, load_policy("srtf"), Setting(network="off", reference_device=name)).records[
            "end_s"
        ]
        for trace, name in ((on_t4, "T4"), (on_h100, "H100"))
    ]
    assert ends[0] == pytest.approx(ends[1])
