"""A profile and a cluster become a problem: limits, prices, memory, crossings, what is fixed and what is fed."""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError, UnknownNameError
from berth.plan.build import (
    apply_pins,
    link_bytes_per_s,
    match_layers,
    match_type,
    problem_for,
    restrict_to_types,
)
from berth.plan.problem import UNLIMITED
from berth.plan.profile import load_layer_profile

CTRDNN = load_layer_profile("ctrdnn")
CLOUD = load_cluster("cloud-mix")

OWN = """
tiers:
  - {name: machine, bandwidth: 100GB/s}
  - {name: network, bandwidth: 10GB/s}
machines:
  - {count: 2, devices: {cpu-core: 4}, cores: 4, memory: 8GiB, nic: 5GB/s, price: $0.40/h}
  - {count: 3, devices: {T4: 2}, nic: 2GB/s}
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    return load_cluster(str(path))


def test_counts_are_limits_and_a_core_has_its_part_of_the_host(own):
    core, t4 = problem_for(CTRDNN, own, 1000).types
    assert (core.limit, core.memory_bytes) == (8, 2 * 2**30)
    assert core.usd_per_hour == pytest.approx(0.04 + 0.40 / 4)
    assert (t4.limit, t4.memory_bytes, t4.usd_per_hour) == (6, 16 * 2**30, 0.526)


def test_crossings_take_the_slowest_port_unless_another_link_is_stated(own):
    problem = problem_for(CTRDNN, own, 1000)
    assert problem.cross_s == pytest.approx(CTRDNN.cross_bytes / 2e9)
    assert link_bytes_per_s(own, [own.device_types[0]]) == 5e9
    assert problem_for(CTRDNN, own, 1000, link=1e9).cross_s == pytest.approx(CTRDNN.cross_bytes / 1e9)


def test_devices_by_name_have_no_limits_and_aliases_count_once():
    problem = problem_for(CTRDNN, ["cpu", "V100", "V100-16"], 1000)
    assert problem.type_names == ("cpu-core", "V100-16")
    assert {one.limit for one in problem.types} == {UNLIMITED}


def test_times_are_the_profiles():
    problem = problem_for(CTRDNN, CLOUD, 1000)
    times = CTRDNN.times(["cpu-core", "T4", "V100", "A100-40", "H100"])
    np.testing.assert_array_equal(problem.oct_s, times.oct_s)
    np.testing.assert_array_equal(problem.beta, times.beta)


def test_tables_are_paid_for_once_on_servers_or_on_replicas():
    servers = problem_for(CTRDNN, CLOUD, 1000)
    replicas = problem_for(CTRDNN, CLOUD, 1000, tables="replicas")
    assert servers.sharded_bytes.sum() == 0
    assert replicas.sharded_bytes.sum() == CTRDNN.sharded_bytes.sum() > 0
    assert servers.source.fixed.server_cores >= 1
    assert replicas.source.fixed.server_cores == 0
    assert servers.fixed_usd_per_hour == pytest.approx(0.04 * (1 + servers.source.fixed.server_cores))


def test_a_price_given_replaces_what_would_be_fixed():
    problem = problem_for(CTRDNN, CLOUD, 1000, fixed_usd_per_hour=1.5)
    assert problem.source.fixed is None
    assert problem.fixed_usd_per_hour == 1.5


def test_feeding_grows_with_the_rate_and_its_cost_hardly():
    problem = problem_for(CTRDNN, CLOUD, 1000)
    slow, fast = problem.source.serving_cores(1e6), problem.source.serving_cores(1e7)
    assert fast.reader_cores > 5 * slow.reader_cores
    assert problem.serving_usd(1e7) == pytest.approx(
        problem.serving_usd(1e6), rel=0.1
    )  # whole cores apart, it is the same per example


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("embedding", ["embedding"]),
        ("emb", ["embedding"]),
        ("concat..fc1", ["concat", "norm", "fc1"]),
        ("fc1", ["fc1"]),
        ("loss", ["loss"]),
        ("fully", ["fc1", "fc2", "fc3", "fc4", "fc5", "fc6", "fc7", "fc8", "fc9", "fc10", "predict"]),
    ],
)
def test_layers_answer_to_names_beginnings_kinds_and_ranges(text, meant):
    assert match_layers(problem_for(CTRDNN, CLOUD, 1), text) == meant


def test_a_pin_leaves_one_type():
    problem = apply_pins(problem_for(CTRDNN, CLOUD, 1), ["emb=cpu", "fc1..fc2=v100"])
    assert problem.allowed[0].tolist() == [True, False, False, False, False]
    assert problem.allowed[CTRDNN.names.index("fc2")].tolist() == [False, False, True, False, False]
    assert problem.allowed[1].all()


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (["embd=cpu"], "did you mean 'embedding'?"),
        (["emb=T5"], "no device type of this problem is called 'T5'"),
        (["emb"], "is not LAYER=TYPE"),
        (["=cpu"], "is not LAYER=TYPE"),
        (["emb=cpu", "embedding=T4"], "pinned to cpu-core and to T4"),
        (["fc2..fc1=cpu"], "'fc1' comes before 'fc2'"),
    ],
)
def test_a_pin_that_means_nothing_is_refused(pins, said):
    with pytest.raises(InputError) as caught:
        apply_pins(problem_for(CTRDNN, CLOUD, 1), pins)
    assert said in str(caught.value)


def test_forbidden_types_are_gone():
    assert problem_for(CTRDNN, CLOUD, 1, forbid=["cpu", "h100"]).type_names == ("T4", "V100-16", "A100-40")
    with pytest.raises(UnknownNameError, match="K80"):
        problem_for(CTRDNN, CLOUD, 1, forbid=["K80"])
    with pytest.raises(InputError, match="every device type is forbidden"):
        problem_for(CTRDNN, ["T4"], 1, forbid=["T4"])


def test_a_device_without_a_price_is_named():
    with pytest.raises(InputError, match="the price of RTX-4090 is not known"):
        problem_for(CTRDNN, load_cluster("lab"), 1)


def test_types_answer_to_aliases_and_can_be_kept_alone():
    problem = problem_for(CTRDNN, CLOUD, 1)
    assert match_type(problem, "CPU") == "cpu-core"
    kept = restrict_to_types(problem, ["T4"])
    assert kept.allowed[:, 1].all()
    assert kept.allowed.sum() == len(problem.layers)


def test_tables_live_somewhere_known():
    with pytest.raises(UnknownNameError, match="nowhere"):
        problem_for(CTRDNN, CLOUD, 1, tables="nowhere")
