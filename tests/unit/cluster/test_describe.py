"""Descriptions of clusters: read back, they are the same cluster but for names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from berth.cluster.describe import describe, load_described
from berth.cluster.load import load_cluster, preset_names
from berth.errors import InputError


@pytest.mark.parametrize("name", [*preset_names(), "2x4x20x8:H100", "160", "3x8"])
def test_a_description_is_read_back_as_the_same_cluster(name):
    cluster = load_cluster(name)
    again = load_described(describe(cluster))
    assert again.device_types == cluster.device_types
    assert again.tiers == cluster.tiers
    assert (again.groups == cluster.groups).all()
    assert [replace(machine, name="") for machine in again.machines] == [
        replace(machine, name="") for machine in cluster.machines
    ]


def test_machines_without_devices_are_left_out():
    cluster = load_cluster("2x2x8:H100")
    first, *others = cluster.machines
    described = describe(replace(cluster, machines=(replace(first, devices=()), *others)))
    assert load_described(described).devices == 24


def test_a_wrong_description_names_the_key():
    with pytest.raises(InputError, match="machines"):
        load_described({"machines": []})


def test_a_price_of_zero_is_kept():
    described = {"devices": {"T4": {"price": "$0/h"}}, "machines": [{"devices": {"T4": 4}}]}
    cluster = load_described(described)
    again = load_described(describe(cluster))
    assert [kind.usd_per_hour for kind in again.device_types] == [0.0]
    assert again.device_types == cluster.device_types
