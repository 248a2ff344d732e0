"""A table of hosts and switches becomes a tree, or an error at the line that contradicts it."""

from __future__ import annotations

from collections import Counter

import pytest

from berth.cluster import load_cluster, read_topology
from berth.errors import InputError


@pytest.fixture
def table(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "topo.csv"
        path.write_text(text)
        return str(path)

    return write


NESTED = "host,core,tor\nh1,c1,t1\nh2,c1,t2\nh3,c1,t1\n"


def test_columns_nest_as_the_data_says(table):
    cluster = read_topology(table(NESTED))
    assert [tier.name for tier in cluster.tiers] == ["machine", "tor", "core"]
    assert cluster.group_names == (("h1", "h3", "h2"), ("c1-t1", "c1-t2"), ("c1",))
    assert cluster.groups.tolist() == [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    assert cluster.group_sizes(1).tolist() == [16, 8]


def test_the_order_of_the_columns_does_not_matter(table):
    swapped = read_topology(table("host,tor,core\nh1,t1,c1\nh2,t2,c1\nh3,t1,c1\n"))
    assert swapped.groups.tolist() == read_topology(table(NESTED)).groups.tolist()
    assert [tier.name for tier in swapped.tiers] == ["machine", "tor", "core"]


@pytest.mark.parametrize("text", ["host,a,b\nh1,a1,b1\nh2,a1,b1\n", "host,a,b\nh1,a1,b1\nh2,a2,b2\n"])
def test_columns_that_group_alike_keep_the_order_of_the_header(table, text):
    cluster = read_topology(table(text))
    assert [tier.name for tier in cluster.tiers][:3] == ["machine", "b", "a"]


def test_several_coarsest_groups_are_joined_by_a_network(table):
    cluster = read_topology(table("host,tor\nh1,t10\nh2,t2\n"))
    assert [tier.name for tier in cluster.tiers] == ["machine", "tor", "network"]
    assert cluster.group_names[1] == ("t2", "t10")


def test_figures_come_from_the_place_in_the_tree(table):
    cluster = read_topology(table("host,rack,network2\nh1,a,x\nh2,b,x\n"))
    assert [tier.bytes_per_s for tier in cluster.tiers] == [300e9, 25e9, 12.5e9]


def test_names_that_restart_in_each_coarser_group_are_different_switches_and_noted(table):
    cluster = read_topology(table("host,pod,tor\nh1,p1,s1\nh2,p1,s2\nh3,p1,s3\nh4,p2,s1\nh5,p2,s2\n"))
    assert [len(names) for names in cluster.group_names] == [5, 5, 2, 1]
    assert cluster.notes == (
        "2 of 3 tor names recur in several pod groups: read as numbered per group, 5 groups",
    )


def test_if_names_recur_both_ways_the_direction_of_the_header_decides(table):
    rows = [(f"h{pod}{tor}", "c", f"p{pod}", f"s{tor}") for pod in range(5) for tor in range(2)]
    coarse_first = table("host,core,pod,tor\n" + "".join(f"{','.join(row)}\n" for row in rows))
    assert [tier.name for tier in read_topology(coarse_first).tiers] == ["machine", "tor", "pod", "core"]
    fine_first = table("host,tor,pod,core\n" + "".join(f"{h},{t},{p},{c}\n" for h, c, p, t in rows))
    assert [tier.name for tier in read_topology(fine_first).tiers] == ["machine", "tor", "pod", "core"]


def test_a_single_contradiction_is_refused_at_its_line(table):
    path = table("host,pod,tor\nh1,p1,s1\nh2,p1,s2\nh3,p1,s3\nh4,p2,s4\nh5,p2,s1\n")
    with pytest.raises(InputError) as caught:
        read_topology(path)
    assert str(caught.value).startswith(f"{path}:6: tor 's1' is in pod 'p2' here and in 'p1' above")


@pytest.mark.parametrize(
    ("suffix", "devices", "device"),
    [("", 24, "GPU"), (":4xH100", 12, "H100"), (":a100", 24, "A100-80"), (":2", 6, "GPU")],
)
def test_a_suffix_names_the_devices_of_a_host(table, suffix, devices, device):
    cluster = load_cluster(table(NESTED) + suffix)
    assert (cluster.devices, cluster.device_types[0].name) == (devices, device)


MISTAKES = [
    ("", ":1: is not a topology"),
    ("host\nh1\n", ":1: is not a topology"),
    ("host,tor,tor\nh1,a,b\n", ":1: has a column name"),
    ("host,Machine\nh1,a\n", ":1: has a column name"),
    ("host,tor\n", "names no host"),
    ("host,tor\nh1\n", ":2: needs 2 values"),
    ("host,tor\nh1,\n", ":2: needs 2 values"),
    ("host,tor\nh1,a\n\nh1,b\n", ":4: host 'h1' is already on line 2"),
    (f"host,tor\n{'h' * 200_000},a\n", "is not CSV: field larger"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_broken_table_is_refused_at_its_line(table, text, message):
    with pytest.raises(InputError) as caught:
        read_topology(table(text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (":0", "0 devices per host"),
        (":0xH100", "0 devices per host"),
        (":9xZ", "no device type"),
        (":100000000", "hosts of 100,000,000 devices; the limit is 10,000,000"),
    ],
)
def test_a_wrong_suffix_is_refused(table, suffix, message):
    with pytest.raises(InputError, match=message):
        load_cluster(table(NESTED) + suffix)


@pytest.mark.shared
def test_the_lingjun_preset_has_the_groups_of_the_public_table(shared_traces):
    public = read_topology(shared_traces / "alibaba-lingjun-2023" / "topo.csv")
    preset = load_cluster("lingjun")
    assert [tier.name for tier in public.tiers] == [tier.name for tier in preset.tiers]
    assert [len(names) for names in public.group_names] == [847, 119, 3, 1]
    assert public.notes
    assert _contents(public) == _contents(preset)


def _contents(cluster):
    """Per aggregation group how many access switches there are of each size."""
    sizes = cluster.group_sizes(1).tolist()
    parents = dict(zip(cluster.groups[1].tolist(), cluster.groups[2].tolist(), strict=True))
    groups = [Counter(size for asw, size in enumerate(sizes) if parents[asw] == psw) for psw in range(3)]
    return sorted(sorted(group.items()) for group in groups)
