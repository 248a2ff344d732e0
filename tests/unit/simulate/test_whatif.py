"""What-ifs change what they name and nothing else."""

from __future__ import annotations

import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.simulate.whatif import add_racks, replace_device, scale_link


def test_more_racks_are_copies_of_the_last_with_names_of_their_own():
    before = load_cluster("2x3x4:H100")
    after = add_racks(before, 2)
    assert (after.devices, len(after.machines)) == (48, 12)
    assert after.group_names[1] == ("r0", "r1", "r2", "r3")
    assert after.group_names[0][-1] == "r3-m2"
    assert len(set(after.group_names[0])) == 12
    assert after.groups[1].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert after.notes == ("what if: 2 more racks like r1",)


def test_a_cluster_without_racks_gets_machines_and_a_note():
    after = add_racks(load_cluster("3x8"), 1)
    assert len(after.machines) == 4
    assert "the cluster has no racks, so machines were added" in after.notes[0]


def test_a_rack_added_to_one_of_two_halls_is_in_the_last_hall():
    after = add_racks(load_cluster("2x2x2x8"), 1)
    assert len(after.group_names[1]) == 5
    assert after.groups[2].tolist() == [0] * 4 + [1] * 6


def test_a_faster_link_scales_one_tier():
    before = load_cluster("2x2x8:H100")
    after = scale_link(before, "network=2x")
    assert after.tiers[2].bytes_per_s == 2 * before.tiers[2].bytes_per_s
    assert after.tiers[:2] == before.tiers[:2]


def test_a_nic_in_the_way_of_a_faster_link_is_pointed_out():
    lab = load_cluster("lab")
    after = scale_link(lab, f"{lab.tiers[-1].name}=10x")
    assert any("--link nic=10x" in note for note in after.notes)
    faster = scale_link(lab, "nic=10x")
    assert faster.machines[0].nic_bytes_per_s == pytest.approx(10 * lab.machines[0].nic_bytes_per_s)


def test_scaling_nics_that_are_not_there_is_refused():
    with pytest.raises(InputError, match="NIC of its own"):
        scale_link(load_cluster("2x8:H100"), "nic=2x")


def test_another_device_replaces_all_gpus_and_their_price():
    after = replace_device(load_cluster("cloud-mix"), "H100")
    assert [kind.name for kind in after.device_types if kind.kind == "gpu"] == ["H100"]
    assert after.devices == load_cluster("cloud-mix").devices
