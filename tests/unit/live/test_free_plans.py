"""Plans for what is free on a live cluster: their times are those of a job, and no free device is a message."""

from __future__ import annotations

import pytest

from berth.live import commands
from berth.live.api.service import Service
from berth.live.api.tokens import Tokens
from berth.live.commands import ConflictError
from berth.live.goals import Goal
from berth.workload.binding import bind, run_s

CLUSTER = """\
racks:
  - machines: [{name: gpus, devices: {T4: 2}}, {name: cores, devices: {cpu-core: 8}}]
"""
GOAL = Goal("ctrdnn-8", 1e8, examples_per_s=1e4, rows=1e6)


@pytest.fixture
def live(crank, tmp_path):
    file = tmp_path / "mix.yaml"
    file.write_text(CLUSTER)
    return crank(cluster=str(file), policy="berth")


def service_of(live):
    return Service(live.controller, Tokens(live.folder), live.folder / "attempts")


@pytest.mark.slow
def test_a_plan_that_no_machine_holds_takes_as_long_as_over_the_rack(live):
    service = service_of(live)
    found = service.free_plans(GOAL)["plans"]
    offer = service._planned(GOAL, live.cluster).offer
    times = {}
    for shape in offer.alternatives:
        bound = bind(shape, live.cluster)
        assert len(shape.devices) == 1 or bound.nearest_tier == 1
        times[shape.name] = run_s(offer, bound, bound.nearest_tier)
    assert any(times[shape.name] > offer.near_s(shape) for shape in offer.alternatives)
    for row in found:
        assert row["end"] - row["start"] == pytest.approx(times[row["shape"]["name"]])


def test_without_a_free_device_the_message_names_drained_machines(live):
    for machine in ("gpus", "cores"):
        live.ask(commands.drain(machine))
    with pytest.raises(ConflictError, match="no device of mix is free") as refused:
        service_of(live).free_plans(GOAL)
    assert "berth undrain" in refused.value.hint
