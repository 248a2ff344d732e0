"""A job with two plans under Slurm: started as one, evicted, resumed as the other, with the same result."""

from __future__ import annotations

import pytest

from shape_change import ShapeChange, two_stages_to_three

pytestmark = pytest.mark.soak

TYPE = "A100-40"
CLUSTER = """\
machines:
  - {name: n00, devices: {A100-40: 1}}
  - {name: n01, devices: {A100-40: 1}}
  - {name: n02, devices: {A100-40: 1}}
"""


def test_an_evicted_job_resumes_with_other_stages_and_learns_the_same(slurm, up, tmp_path_factory):
    change = ShapeChange(tmp_path_factory.mktemp("shapes"), TYPE, *two_stages_to_three(TYPE))
    three = change.folder / "three.yaml"
    three.write_text(CLUSTER)
    live = up("--backend", "slurm", "--cluster", str(three), "--policy", "srtf")
    change.start(live)
    change.evict(live, devices=1)
    change.finish(live)

    change.assert_resumed_as_the_second(live)
    assert [sorted(places.values()) for places in change.places(live)] == [[1, 1, 1], [1, 1]]
    change.assert_learned_the_same(live)
    assert live.berth("replay", str(live.state)).stdout.endswith("0 differences\n")
