"""One word names a cluster: a shape, a preset or a file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from berth.cluster import load_cluster, presets
from berth.errors import InputError

SHAPES = [
    ("160", ["pool"], [1], 160, "GPU"),
    ("160:t4", ["pool"], [1], 160, "T4"),
    ("20x8", ["machine", "network"], [20, 1], 160, "GPU"),
    ("4x20x8", ["machine", "rack", "network"], [80, 4, 1], 640, "GPU"),
    ("4X20X8:H100", ["machine", "rack", "network"], [80, 4, 1], 640, "H100"),
    ("2x4x20x8:A100", ["machine", "rack", "pod", "network"], [160, 8, 2, 1], 1280, "A100-80"),
    ("1x1x1x1x1", ["machine", "rack", "pod", "pod2", "network"], [1] * 5, 1, "GPU"),
]


@pytest.mark.parametrize(("text", "tiers", "groups", "devices", "device"), SHAPES, ids=str)
def test_a_shape_counts_from_the_outside_in(text, tiers, groups, devices, device):
    cluster = load_cluster(text)
    assert cluster.name == text
    assert [tier.name for tier in cluster.tiers] == tiers
    assert [len(names) for names in cluster.group_names] == groups
    assert cluster.devices == devices
    assert [kind.name for kind in cluster.device_types] == [device]


def test_ten_thousand_machines_are_ordinary():
    cluster = load_cluster("250x40x8")
    assert len(cluster.machines) == 10_000
    assert cluster.group_sizes(1).tolist() == [320] * 250


def test_ten_million_devices_are_the_most_that_is_taken():
    assert load_cluster("10000000").devices == 10_000_000
    with pytest.raises(InputError, match="10,000,001 devices"):
        load_cluster("10000001")


MISTAKES = [
    ("0x8", "has a zero in it"),
    ("4x", "an x with no number"),
    ("x8", "an x with no number"),
    ("4xx8", "an x with no number"),
    ("4x8:", "names no device"),
    ("4x8:H1000", "did you mean 'H100'?"),
    ("99999x99999x8", "79,998,400,008 devices; the limit is 10,000,000"),
    ("9" * 5000, "has too many levels or digits"),
    ("x".join("1" * 13), "has too many levels or digits"),
    ("labb", "no cluster preset is called 'labb'\n  did you mean 'lab'?\n  or give a shape"),
    ("abc", "no cluster preset is called 'abc'"),
    ("", "no cluster preset is called ''"),
    ("z" * 5000, "no cluster preset"),
    ("nowhere.yaml", "nowhere.yaml: no such file"),
    ("no/such/place", "no/such/place: no such file"),
    ("nowhere.csv:8xA100", "nowhere.csv: no such file"),
    ("nowhere.yaml:H100", "a YAML file names its devices itself"),
    (".", "is a folder, not a file"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text[:20] or "nothing" for text, _ in MISTAKES])
def test_what_names_no_cluster_is_refused_with_a_hint(text, message):
    with pytest.raises(InputError) as caught:
        load_cluster(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400 or text.startswith("z")


def test_every_preset_loads_under_its_own_name_and_says_what_it_is():
    descriptions = presets()
    assert set(descriptions) >= {"dgx-a100-pod", "hgx-h100-pod", "gb200-nvl72", "lab", "cloud-mix", "lingjun"}
    for name, description in descriptions.items():
        assert load_cluster(name).name == name
        assert 10 < len(description) < 100
        assert "\n" not in description


def test_a_preset_wins_over_a_file_of_its_name_and_a_path_reaches_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").write_text("name: mine\nmachines: [{devices: {T4: 1}}]")
    assert load_cluster("lab").devices == 8
    assert load_cluster("./lab").name == "mine"


def test_an_nvl72_rack_is_one_fast_domain_above_its_trays():
    machine, rack, network = load_cluster("gb200-nvl72").tiers
    assert machine.bytes_per_s == rack.bytes_per_s == 900e9
    assert network.bytes_per_s == 50e9
    assert load_cluster("gb200-nvl72").group_sizes(1).tolist() == [72] * 8


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, berth.cluster; print({'numba', 'polars', 'scipy', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_loading_a_cluster_needs_no_compiled_code():
    code = "import sys, berth.cluster as c; c.load_cluster('lingjun'); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
