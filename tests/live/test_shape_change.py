"""A job with two plans on this machine: started as one, evicted, resumed as the other, with the same result."""

from __future__ import annotations

import pytest

from berth.testing.up import until
from shape_change import Plan, ShapeChange, Stage

pytestmark = pytest.mark.slow

CLUSTER = """\
racks:
  - machines: [{name: gpus, devices: {T4: 2}}, {name: cores, devices: {cpu-core: 6}}]
"""
WITH_GPU = Plan("with-gpu", (Stage("embedding .. concat", "cpu-core", 2), Stage("norm .. loss", "T4", 1)))
CORES = Plan("cores", (Stage("embedding .. concat", "cpu-core", 1), Stage("norm .. loss", "cpu-core", 2)))


def test_an_evicted_job_resumes_as_another_plan_and_learns_the_same(up, tmp_path_factory):
    change = ShapeChange(tmp_path_factory.mktemp("shapes"), "T4", WITH_GPU, CORES)
    lab = change.folder / "lab.yaml"
    lab.write_text(CLUSTER)
    live = up("--cluster", str(lab), "--policy", "srtf")
    others = live.submit("sleep 9999", gpus=2, kind="cpu-core", duration="10h", grace="0s", priority=5)
    until(lambda: live.state_of(others) == "running")
    change.start(live)  # of its plans only the one with a T4 fits now
    live.client.post("jobs", others, "cancel")
    until(lambda: live.state_of(others) == "cancelled")
    change.evict(live, devices=2)
    change.finish(live)

    change.assert_resumed_as_the_second(live)
    assert change.places(live) == [{"gpus": 1, "cores": 4}, {"cores": 5}]  # a reader each
    change.assert_learned_the_same(live)
    assert live.berth("replay", str(live.state)).stdout.endswith("0 differences\n")
