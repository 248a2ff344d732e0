"""Jobs request GPUs: other devices of a cluster are left out, with a note."""

from __future__ import annotations

import pytest

from berth.cluster.gpus import gpu_part, usable_types
from berth.cluster.load import load_cluster
from berth.testing import cluster


@pytest.mark.parametrize(
    ("machines", "types"),
    [
        ([{"V100": 4}, {"P100": 2}], (0, 1)),
        ([{"cpu-core": 48}, {"V100": 4, "cpu-core": 8}, {"P100": 2}], (1, 2)),
        ([{"cpu-core": 48}], (0,)),
    ],
    ids=["GPUs alone", "GPUs beside cores", "cores alone"],
)
def test_jobs_run_on_gpus_and_where_there_are_none_on_everything(machines, types):
    assert usable_types(cluster(machines)) == types


def test_without_its_cores_a_cluster_has_the_same_machines_and_gpus():
    whole = load_cluster("cloud-mix")
    part = gpu_part(whole)
    assert [kind.name for kind in part.device_types] == ["H100", "A100-40", "V100-16", "T4"]
    assert [machine.name for machine in part.machines] == [machine.name for machine in whole.machines]
    assert [part.count_of(kind) for kind in range(4)] == [8, 16, 32, 32]
    assert part.sizes[:16].tolist() == [0] * 16
    assert "768 cpu-core" in part.notes[-1]
    assert gpu_part(part) is part
