"""A cluster file is expanded as written, and every mistake is reported at its position."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

from berth.cluster import load_cluster
from berth.cluster.gpus import gpu_part
from berth.cluster.model import Cluster
from berth.errors import InputError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "clusters"


@pytest.fixture
def read(tmp_path):
    def from_yaml(text: str) -> Cluster:
        path = tmp_path / "c.yaml"
        path.write_text(textwrap.dedent(text))
        return load_cluster(str(path))

    return from_yaml


def test_machines_alone_make_two_tiers_with_default_figures(read):
    cluster = read("machines: [{count: 3, devices: {A100: 8}}]")
    assert cluster.name == "c"
    assert [tier.name for tier in cluster.tiers] == ["machine", "network"]
    assert [(tier.bytes_per_s, tier.latency_s, tier.oversubscription) for tier in cluster.tiers] == [
        (300e9, 1e-6, 1.0),
        (12.5e9, 5e-6, 4.0),
    ]
    assert cluster.groups.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert cluster.group_names == (("m0", "m1", "m2"), ("c",))


def test_racks_make_three_tiers_and_names_with_the_path(read):
    cluster = read("racks: [{count: 2, machines: [{count: 2, devices: {A100: 8}}]}]")
    assert [tier.name for tier in cluster.tiers] == ["machine", "rack", "network"]
    assert cluster.groups.tolist() == [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert cluster.group_names == (("r0-m0", "r0-m1", "r1-m0", "r1-m1"), ("r0", "r1"), ("c",))


def test_each_level_of_groups_is_one_more_tier(read):
    cluster = read(
        """
        groups:
          - count: 2
            groups:
              - count: 2
                racks: [{machines: [{devices: {T4: 1}}]}]
        """
    )
    assert [tier.name for tier in cluster.tiers] == ["machine", "rack", "pod", "pod2", "network"]
    assert cluster.groups[3].tolist() == [0, 0, 1, 1]
    assert cluster.machines[3].name == "g1-g1-r0-m0"
    assert cluster.tiers[3].oversubscription == cluster.tiers[2].oversubscription == 2.0


def test_uneven_racks_and_mixed_machines_number_devices_machine_by_machine(read):
    cluster = read(
        """
        racks:
          - machines: [{devices: {T4: 1}}, {devices: {V100: 2, cpu-core: 3}}]
          - machines: [{count: 2, devices: {cpu-core: 1}}]
        """
    )
    assert cluster.sizes.tolist() == [1, 5, 1, 1]
    assert cluster.device_machine.tolist() == [0, 1, 1, 1, 1, 1, 2, 3]
    assert [cluster.device_types[kind].name for kind in cluster.device_type] == [
        *("T4", "V100-16", "V100-16", "cpu-core", "cpu-core", "cpu-core", "cpu-core", "cpu-core")
    ]
    assert cluster.group_sizes(1).tolist() == [6, 2]


def test_given_names_get_an_index_when_counted_and_their_groups_name_when_that_is_repeated(read):
    cluster = read(
        """
        racks:
          - {name: a, machines: [{name: big, devices: {T4: 1}}, {name: node, count: 2, devices: {T4: 1}}]}
          - {name: b, count: 2, machines: [{name: node, count: 2, devices: {T4: 1}}]}
        """
    )
    assert cluster.group_names[1] == ("a", "b0", "b1")
    assert cluster.group_names[0] == ("big", "node0", "node1", "b0-node0", "b0-node1", "b1-node0", "b1-node1")


def test_a_written_device_overrides_the_catalogue_field_by_field(read):
    cluster = read("{devices: {H100: {price: $1/h}, Mine: {}}, machines: [{devices: {H100: 1, Mine: 1}}]}")
    h100, mine = cluster.device_types
    assert (h100.usd_per_hour, h100.flops, h100.memory_bytes) == (1.0, 989e12, 80 * 2**30)
    assert (mine.name, mine.kind, mine.memory_bytes, mine.usd_per_hour) == ("Mine", "gpu", None, None)
    assert cluster.usd_per_hour is None


def test_two_spellings_of_one_device_are_one_type(read):
    cluster = read("machines: [{devices: {A100: 2, a100-80gb: 3}}]")
    assert [kind.name for kind in cluster.device_types] == ["A100-80"]
    assert cluster.machines[0].devices == ((0, 5),)


def test_price_adds_devices_and_hosts(read):
    cluster = read("machines: [{count: 2, devices: {V100: 4, cpu-core: 10}, price: $1/h}]")
    assert cluster.usd_per_hour == pytest.approx(2 * (4 * 2.42 + 10 * 0.04 + 1))


MIXED = "machines: [{devices: {T4: 4, A100: 2}}]\n"


@pytest.mark.parametrize(
    ("devices", "notes"),
    [
        ("T4: {price: $0/h}", 1),
        ("T4: {price: $0/h}, A100: {price: $0/h}", 0),  # there is no other cost to compare with
        ("T4: {price: $0.01/h}", 0),
    ],
)
def test_a_type_without_cost_beside_others_is_noted(read, devices, notes):
    cluster = read(f"devices: {{{devices}}}\n{MIXED}")
    assert len(cluster.notes) == notes
    assert all("T4 costs $0/h" in note and "without regard to dollars" in note for note in cluster.notes)


def test_an_uplink_is_the_sum_below_it_capped_by_the_nic_and_divided_by_the_oversubscription(read):
    cluster = read(
        """
        tiers:
          - {bandwidth: 300GB/s}
          - {bandwidth: 25GB/s}
          - {bandwidth: 10GB/s, oversubscription: 2}
        racks:
          - machines: [{devices: {T4: 8}}, {devices: {T4: 8}, nic: 30GB/s}]
          - machines: [{devices: {T4: 2}}]
        """
    )
    assert cluster.uplinks(0).tolist() == [200e9, 30e9, 50e9]
    assert cluster.uplinks(1).tolist() == [(80e9 + 30e9) / 2, 10e9]
    assert cluster.uplinks(2).tolist() == []


def test_cores_add_nothing_to_an_uplink_and_a_machine_without_gpus_counts_as_one_device(read):
    tiers = "tiers: [{bandwidth: 300GB/s}, {bandwidth: 25GB/s}, {bandwidth: 10GB/s, oversubscription: 1}]"
    for cores in ("", ", cpu-core: 64"):
        machines = f"{{devices: {{T4: 8{cores}}}}}, {{devices: {{cpu-core: 64}}}}"
        cluster = read(f"{tiers}\nracks: [{{machines: [{machines}]}}]")
        for same in (cluster, gpu_part(cluster), gpu_part(cluster, frozenset({"cpu-core"}))):
            assert same.uplinks(0).tolist() == [200e9, 25e9]
            assert same.uplinks(1).tolist() == [90e9]


def test_without_any_gpu_every_device_has_a_link(read):
    tiers = "tiers: [{bandwidth: 300GB/s}, {bandwidth: 25GB/s, oversubscription: 1}]"
    cluster = read(f"{tiers}\nmachines: [{{devices: {{cpu-core: 4}}}}]")
    assert cluster.uplinks(0).tolist() == [100e9]


def test_a_named_tier_takes_the_figures_of_its_name_and_an_unknown_one_those_of_its_place(read):
    cluster = read(
        """
        tiers: [{name: tray}, {name: nvl, bandwidth: 900GB/s}, {name: network, latency: 0}]
        racks: [{machines: [{devices: {GB200: 4}}]}]
        """
    )
    assert [(tier.name, tier.bytes_per_s, tier.latency_s) for tier in cluster.tiers] == [
        ("tray", 300e9, 1e-6),
        ("nvl", 900e9, 2e-6),
        ("network", 12.5e9, 0.0),
    ]


MISTAKES = {
    "unknown key": ("machines:\n- {gpus: 8, devices: {T4: 1}}", ":2:4: machines.0.gpus: unknown key"),
    "bandwidth without a unit": (
        "tiers:\n- {bandwidth: 25}\n- {}\nmachines: [{devices: {T4: 1}}]",
        ":2:15: tiers.0.bandwidth: '25' has no unit",
    ),
    "a size where a bandwidth belongs": (
        "tiers:\n- {bandwidth: 25GB}\n- {}\nmachines: [{devices: {T4: 1}}]",
        ":2:15: tiers.0.bandwidth: '25GB' is not a bandwidth",
    ),
    "zero count": (
        "machines:\n- {count: 0, devices: {T4: 1}}",
        ":2:11: machines.0.count: input should be greater",
    ),
    "negative devices": (
        "machines:\n- {devices: {T4: -1}}",
        ":2:18: machines.0.devices.T4: input should be greater",
    ),
    "a count that is no number": ("machines:\n- {count: yes, devices: {T4: 1}}", ":2:11: machines.0.count:"),
    "oversubscription below one": (
        "tiers:\n- {oversubscription: 0.5}\n- {}\nmachines: [{devices: {T4: 1}}]",
        ":2:22: tiers.0.oversubscription: input should be greater",
    ),
    "no machines": ("name: x", ":1:1: holds no machines"),
    "machines beside racks": (
        "machines:\n- devices: {T4: 1}\nracks:\n- machines: [{devices: {T4: 1}}]",
        ":1:1: `racks:` and `machines:` are both given",
    ),
    "empty list": ("machines: []", ":1:11: machines: is empty; it needs at least 1"),
    "empty group": ("groups:\n- name: a", ":2:3: holds no machines"),
    "machine without devices": ("machines:\n- {devices: {}}", ":2:13: machines.0.devices:"),
    "machine without the key devices": ("machines:\n- {cores: 2}", "machines.0.devices: is missing"),
    "unknown device": (
        "machines:\n- {devices: {H10O: 1}}",
        ":2:14: no device type is called 'H10O'\n  did you mean 'H100'?",
    ),
    "same machine name twice": (
        "machines:\n- {name: a, devices: {T4: 1}}\n- {name: a, devices: {T4: 1}}",
        ":3:10: two machines are called 'a'",
    ),
    "a given name that a generated one has": (
        "racks:\n- machines: [{devices: {T4: 1}}]\n- {name: r0, machines: [{devices: {T4: 1}}]}",
        ":3:10: two racks are called 'r0'",
    ),
    "same tier name twice": (
        "tiers: [{name: a}, {name: a}]\nmachines: [{devices: {T4: 1}}]",
        ":1:20: two tiers are called 'a'",
    ),
    "too few tiers": (
        "tiers: [{name: a}]\nmachines: [{devices: {T4: 1}}]",
        ":1:8: 1 tiers are given where 2 are needed\n  nearest first, for example: machine, network",
    ),
    "uneven depth": (
        "groups:\n- machines: [{devices: {T4: 1}}]\n- racks: [{machines: [{devices: {T4: 1}}]}]",
        ":3:3: the machines of this group are 1 level further down, those of the first",
    ),
    "absurd size": ("machines:\n- {count: 900000000, devices: {T4: 8}}", "describes 7,200,000,000 devices"),
    "list instead of keys": ("- a\n- b", ":1:1: holds a list"),
    "duplicate YAML key": ("name: a\nname: b\nmachines: [{devices: {T4: 1}}]", ":2:1: 'name' is given twice"),
    "broken YAML": ("machines: [{devices: {T4: 1}", "c.yaml:"),
    "a tab inside a key": ("machines:\n- {dev\tices: {T4: 1}}", ":2:4: machines.0.dev\tices: unknown key"),
    "only a comment": ("# nothing", "is empty"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_reported_with_its_position(read, text, message):
    with pytest.raises(InputError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "c.yaml" in str(caught.value)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_load(path):
    cluster = load_cluster(str(path))
    assert cluster.name == path.stem
    assert cluster.devices > 0


GUIDE = (EXAMPLES.parents[1] / "docs" / "guides" / "cluster.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL))
def test_the_guide_shows_what_really_loads(read, block):
    assert read(block).devices > 0


def test_the_guides_python_runs():
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(block, {})


def test_the_examples_mean_what_their_comments_say():
    room = load_cluster(str(EXAMPLES / "university.yaml"))
    assert room.devices == 6 * 2 + 4 * 4 + 4 + 16
    assert dict(
        zip((kind.name for kind in room.device_types), map(room.count_of, range(3)), strict=True)
    ) == {
        "Quadro-P6000": 14,
        "RTX-3090": 18,
        "A100-80": 16,
    }
    halls = load_cluster(str(EXAMPLES / "two-halls.yaml"))
    assert [tier.name for tier in halls.tiers] == ["machine", "rack", "hall", "network"]
    assert halls.group_sizes(2).tolist() == [192, 160 + 640]
    assert np.unique(halls.group_sizes(1)).tolist() == [32, 640]
