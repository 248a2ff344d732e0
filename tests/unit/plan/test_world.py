"""A profile and a cluster become a problem: limits, prices, memory, shares of NICs, tables, servers, all-reduce."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError, UnknownNameError
from berth.network import _kernels
from berth.network.fabric import Fabric
from berth.plan.infeasible import diagnose
from berth.plan.pins import apply_pins, match_layers, match_type, restrict_to_types
from berth.plan.problem import (
    COMPUTE,
    EXAMPLE_BYTES,
    HELD_BYTES,
    IN,
    OUT,
    SERVED_BYTES,
    SHARDED_BYTES,
    SYNC_BYTES,
    UNLIMITED,
)
from berth.plan.profile import load_layer_profile
from berth.plan.profile.host import host_rates
from berth.plan.profile.layer_profile import INDEX_BYTES
from berth.plan.search.exact import exact
from berth.plan.search.method import Budget
from berth.plan.world import HOT_ROWS, KEY_BYTES, WorldOptions
from berth.plan.world_problem import problem_for

CTRDNN = load_layer_profile("ctrdnn")
CLOUD = load_cluster("cloud-mix")
CORE, T4 = 0, 1

OWN = """
tiers:
  - {name: machine, bandwidth: 100GB/s, latency: 2us}
  - {name: network, bandwidth: 10GB/s, latency: 7us, oversubscription: 1}
machines:
  - {count: 2, devices: {cpu-core: 4}, cores: 4, memory: 8GiB, nic: 5GB/s, price: $0.40/h}
  - {count: 3, devices: {T4: 2}, nic: 2GB/s}
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    return load_cluster(str(path))


def on(problem, type_name: str, tables: str = "servers") -> int:
    return problem.choice_index(type_name, tables)


def test_counts_are_limits_and_a_core_has_its_part_of_the_host(own):
    core, t4 = problem_for(CTRDNN, own, 1000).types
    assert (core.limit, core.memory_bytes) == (8, 2 * 2**30)
    assert core.usd_per_hour == pytest.approx(0.04 + 0.40 / 4)
    assert (t4.limit, t4.memory_bytes, t4.usd_per_hour) == (6, 16 * 2**30, 0.526)


def test_devices_of_a_machine_share_its_nic(own):
    core, t4 = problem_for(CTRDNN, own, 1000).source.rented
    assert core.nic_bytes_per_s == pytest.approx(5e9 / 4)
    assert t4.nic_bytes_per_s == pytest.approx(2e9 / 2)
    wide = replace(own, machines=tuple(replace(one, nic_bytes_per_s=None) for one in own.machines))
    assert problem_for(CTRDNN, wide, 1000).source.rented[1].nic_bytes_per_s == 10e9  # a port for each
    shared = replace(own, tiers=(own.tiers[0], replace(own.tiers[1], oversubscription=2.0)))
    assert problem_for(CTRDNN, shared, 1000).source.rented[1].nic_bytes_per_s == pytest.approx(0.5e9)
    stated = problem_for(CTRDNN, own, 1000, options=WorldOptions(nic_share=3e8))
    assert {one.nic_bytes_per_s for one in stated.source.rented} == {3e8}


def test_crossings_are_activations_forward_and_gradients_backward_over_the_share(own):
    problem = problem_for(CTRDNN, own, 1000)
    layer = CTRDNN.layers[0]
    expected = np.array([layer.output_bytes, layer.gradient_bytes]) / CTRDNN.batch / 1e9
    assert problem.cross[on(problem, "T4"), 0] == pytest.approx([*expected, 0.0]), (
        "its host packs and unpacks"
    )
    rates = problem.source.rates
    packing = problem.cross[on(problem, "cpu-core"), 0, 2]
    assert packing == pytest.approx(layer.cross_bytes / CTRDNN.batch * rates.stage_byte_s)
    assert problem.message[on(problem, "cpu-core"), 1] == rates.stage_call_s
    assert problem.cross[:, -1].max() == 0.0


def test_an_all_reduce_is_the_networks_hierarchical_one_over_replicas_that_fill_machines(own):
    problem = problem_for(CTRDNN, own, 1000)
    net = Fabric(own).arrays
    busy = net.busy.copy()
    busy[0] = problem.source.rented[1].link_bytes_per_s
    net = net._replace(busy=busy)
    for replicas, placed in ((2, [2]), (4, [2, 2]), (6, [2, 2, 2])):
        machines = np.arange(2, 2 + len(placed), dtype=np.int32)
        rows, fan, _ = _kernels.nest(machines, np.array(placed, np.int32), net)
        expected = _kernels.hierarchical_ring_s(8e6, rows, fan, net)
        per_byte, seconds = problem.ring[T4, :, replicas]
        assert 8e6 * per_byte + seconds == pytest.approx(expected, rel=1e-6)
    assert (np.diff(problem.ring, axis=2) >= 0).all()
    assert problem.ring[:, :, 1].max() == 0.0


def test_devices_by_name_have_no_limits_and_aliases_count_once():
    problem = problem_for(CTRDNN, ["cpu", "V100", "V100-16"], 1000)
    assert problem.type_names == ("cpu-core", "V100-16")
    assert {one.limit for one in problem.types} == {UNLIMITED}


def test_computation_is_the_profiles_curve():
    problem = problem_for(CTRDNN, CLOUD, 1000)
    row = CTRDNN.names.index("fc1")
    for name in ("cpu-core", "T4"):
        curve = problem.curves[on(problem, name), row, COMPUTE]
        slower = [1.0] * len(CTRDNN.batches)
        if name == "cpu-core":  # the other cores of its machine compute too
            moved = sum(layer.moved_bytes for layer in CTRDNN.layers) / CTRDNN.batch
            slower = [host_rates().compute_slowdown(moved * batch) for batch in CTRDNN.batches]
            assert min(slower) > 1.0
        assert curve[1:] == pytest.approx(CTRDNN.on(name).compute_s[row] * slower)
    assert problem.grid.tolist() == [0.0, *CTRDNN.batches]


def test_tables_are_on_servers_on_disk_or_in_the_memory_of_devices():
    problem = problem_for(CTRDNN, CLOUD, 1000, options=WorldOptions(rows=1e9))
    whole = 1e9 * (2 * CTRDNN.layers[0].row_bytes + INDEX_BYTES)
    for tables, served, sharded in (
        ("servers", whole, 0.0),
        ("disk", whole * HOT_ROWS, 0.0),
        ("machine", 0.0, whole),
        ("replicas", 0.0, whole),
    ):
        facts = problem.facts[on(problem, "T4", tables)].sum(axis=0)
        assert facts[SERVED_BYTES] == pytest.approx(served)
        assert facts[SHARDED_BYTES] == pytest.approx(sharded)
    assert problem.choices[on(problem, "T4", "machine")].cap == 4
    assert problem.choices[on(problem, "T4", "replicas")].cap == UNLIMITED


def test_rows_move_over_the_nic_and_grow_with_the_examples_of_a_call():
    problem = problem_for(CTRDNN, CLOUD, 1000)
    layer, share = CTRDNN.layers[0], 50e9 / 8 / 4
    at = CTRDNN.batches.index(4096)
    rows = layer.touched_rows(4096, CTRDNN.batch)
    out = problem.curves[on(problem, "T4"), 0, OUT, 1 + at]
    assert out == pytest.approx(rows * (layer.row_bytes + 2 * KEY_BYTES) / share)
    per_example = problem.curves[on(problem, "T4"), 0, OUT, 1:] / problem.grid[1:]
    assert (np.diff(per_example) <= 1e-15).all()  # rows of a larger call repeat more


def test_a_larger_table_needs_more_servers_and_never_costs_less():
    costs = []
    for rows in (1e8, 1e9, 1e10):
        problem = problem_for(CTRDNN, CLOUD, 1e6, options=WorldOptions(rows=rows, tables=("servers",)))
        plan = exact(problem, Budget()).plan
        assert plan.servers * problem.host.memory_bytes >= rows * (2 * 64 + INDEX_BYTES) * (1 - 1e-9)
        costs.append(plan.cost_usd)
    assert costs == sorted(costs)


@pytest.mark.slow
def test_a_larger_batch_never_costs_more():
    costs = [
        exact(problem_for(CTRDNN, CLOUD, 1e6, options=WorldOptions(batch=batch)), Budget()).plan.cost_usd
        for batch in (16_384, 65_536, 262_144)
    ]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.slow
def test_whole_machines_are_rented_where_asked():
    problem = problem_for(CTRDNN, CLOUD, 1e6, options=WorldOptions(whole_machines=True))
    assert [one.unit for one in problem.types] == [48, 4, 8, 8, 8]
    plan = exact(problem, Budget()).plan
    units = {one.name: one.unit for one in problem.types}
    assert all(count % units[name] == 0 for name, count in plan.device_counts.items())
    single = exact(problem_for(CTRDNN, CLOUD, 1e6), Budget()).plan
    assert single.cost_usd <= plan.cost_usd * (1 + 1e-9)


def test_async_replicas_have_a_batch_of_their_own_and_dense_parameters_on_servers():
    options = WorldOptions(mode="async", batch_per_replica=2048, staleness=9)
    problem = problem_for(CTRDNN, CLOUD, 1e5, options=options)
    assert (problem.batch, problem.micro, problem.max_replicas) == (2048.0, (), 10)
    assert problem.facts[..., SYNC_BYTES].max() == problem.facts[..., EXAMPLE_BYTES].max() == 0.0
    row = CTRDNN.names.index("fc2")
    at = on(problem, "cpu-core")
    assert problem.facts[at, row, SERVED_BYTES] == 3 * CTRDNN.layers[row].dense_bytes
    assert problem.curves[at, row, IN, 1] == pytest.approx(CTRDNN.layers[row].dense_bytes / (25e9 / 8 / 48))
    plan = exact(problem, Budget()).plan
    assert all(stage.replicas <= 10 for stage in plan.stages)


def test_throughput_of_async_replicas_adds_up():
    options = WorldOptions(mode="async", batch_per_replica=2048, tables=("servers",))
    devices = ["T4", "V100-16", "A100-40", "H100"]
    one, ten = (
        exact(problem_for(CTRDNN, CLOUD, rate, options=options, forbid=devices), Budget()).plan
        for rate in (1e3, 1e5)
    )
    per_replica = [plan.throughput / plan.stages[0].replicas for plan in (one, ten)]
    assert per_replica[0] == pytest.approx(per_replica[1], rel=0.05)


def test_memory_holds_dense_copies():
    problem = problem_for(CTRDNN, CLOUD, 1000)
    row = CTRDNN.names.index("fc2")
    assert problem.facts[0, row, HELD_BYTES] == 4 * CTRDNN.layers[row].dense_bytes


def test_a_price_given_replaces_the_coordinators():
    assert problem_for(CTRDNN, CLOUD, 1000).fixed_usd_per_hour == pytest.approx(0.04)
    assert problem_for(CTRDNN, CLOUD, 1000, fixed_usd_per_hour=1.5).fixed_usd_per_hour == 1.5


def test_servers_come_from_the_clusters_cores_also_where_no_layer_may_run_on_them():
    problem = problem_for(CTRDNN, CLOUD, 1000)
    assert problem.host.device == CORE
    forbidden = problem_for(CTRDNN, CLOUD, 1000, forbid=["cpu"])
    assert forbidden.host.device == -1
    assert forbidden.host.usd_per_hour == problem.host.usd_per_hour


@pytest.mark.parametrize("option", [{"mode": "lazy"}, {"tables": ("nowhere",)}])
def test_options_that_nothing_answers_to_are_refused(option):
    with pytest.raises(UnknownNameError):
        WorldOptions(**option)


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


@pytest.mark.parametrize(
    ("pin", "forbid"), [("fc=T4", "t4"), ("emb=cpu", "cpu-core"), ("fc1..fc2 = core", "cpu")]
)
def test_a_pin_to_a_forbidden_type_is_a_contradiction(pin, forbid):
    problem = problem_for(CTRDNN, CLOUD, 1, forbid=[forbid])
    with pytest.raises(InputError, match=r"--pin .* and --forbid .* contradict each other"):
        apply_pins(problem, [pin], [forbid])


def test_forbidden_types_are_gone():
    assert problem_for(CTRDNN, CLOUD, 1, forbid=["cpu", "h100"]).type_names == ("T4", "V100-16", "A100-40")
    with pytest.raises(UnknownNameError, match="K80"):
        problem_for(CTRDNN, CLOUD, 1, forbid=["K80"])
    with pytest.raises(InputError, match="every device type is forbidden"):
        problem_for(CTRDNN, ["T4"], 1, forbid=["T4"])


def test_a_device_without_a_price_is_named():
    with pytest.raises(InputError, match="the price of RTX-4090 is not known"):
        problem_for(CTRDNN, load_cluster("lab"), 1)


def test_a_price_of_nothing_is_not_called_unknown(tmp_path):
    path = tmp_path / "free.yaml"
    path.write_text("devices: {T4: {price: $0/h}}\nmachines: [{devices: {T4: 4}}]\n")
    with pytest.raises(InputError, match=r"the price of T4 is \$0/h"):
        problem_for(CTRDNN, load_cluster(str(path)), 1)


@pytest.mark.parametrize(
    ("options", "forbid", "rate", "reason"),
    [
        (
            WorldOptions(mode="async", tables=("servers",), staleness=2),
            ["H100", "A100-40"],
            1e6,
            "staleness 2 allows a stage 3 replicas at most",
        ),
        (
            WorldOptions(tables=("machine",), rows=1e9),
            ["cpu", "V100", "A100-40", "H100"],
            1e5,
            "tables divided inside one machine allow a stage as many replicas as a machine has devices: 4 T4",
        ),
    ],
)
def test_a_cap_on_replicas_is_named_where_it_leaves_no_plan(options, forbid, rate, reason):
    problem = problem_for(CTRDNN, CLOUD, rate, options=options, forbid=forbid)
    assert reason in diagnose(problem).reason


def test_types_answer_to_aliases_and_can_be_kept_alone():
    problem = problem_for(CTRDNN, CLOUD, 1)
    assert match_type(problem, "CPU") == "cpu-core"
    kept = restrict_to_types(problem, ["T4"])
    assert kept.allowed[:, 1].all()
    assert kept.allowed.sum() == len(problem.layers)
