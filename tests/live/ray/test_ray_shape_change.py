"""A job with two plans under Ray: started as one, evicted, resumed as the other, with the same result."""

from __future__ import annotations

import pytest

from shape_change import ShapeChange, two_stages_to_three

pytestmark = pytest.mark.soak

TYPE = "T4"


@pytest.fixture
def with_gpus_of_a_type(racks, monkeypatch):
    """Three more nodes, with a GPU of a named type each: a plan names the types of its devices."""
    racks.repair()
    monkeypatch.setenv("RAY_ADDRESS", racks.address)
    joined = [racks.join(f"t{number}", gpus=1, device_type=TYPE) for number in range(3)]
    yield
    for node in joined:
        racks.ray.remove_node(node, allow_graceful=False)
    racks.ray.wait_for_nodes()  # until Ray reports that they are dead


@pytest.mark.usefixtures("with_gpus_of_a_type")
def test_an_evicted_job_resumes_with_other_stages_and_learns_the_same(up, tmp_path_factory):
    change = ShapeChange(tmp_path_factory.mktemp("shapes"), TYPE, *two_stages_to_three(TYPE))
    live = up("--backend", "ray", "--policy", "srtf")
    change.start(live)
    change.evict(live, devices=1)
    change.finish(live)

    change.assert_resumed_as_the_second(live)
    assert [sorted(places.values()) for places in change.places(live)] == [[1, 1, 1], [1, 1]]
    change.assert_learned_the_same(live)
    assert live.berth("replay", str(live.state)).stdout.endswith("0 differences\n")
