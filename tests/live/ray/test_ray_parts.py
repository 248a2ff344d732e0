"""A job of unlike parts under Ray: every part on its machines, by the ranks of its plan."""

from __future__ import annotations

import pytest

from berth.live import commands
from berth.testing.parts import job_of_parts, written

pytestmark = pytest.mark.slow


def test_the_parts_of_a_plan_start_on_their_machines_with_their_ranks(open_desk, tmp_path):
    desk = open_desk(policy="berth")
    state = desk.controller.state
    [kind] = state.setup.device_type_names
    on_one = max(machine.size for machine in state.cluster.machines)
    told = tmp_path / "told"
    told.mkdir()
    job = desk.ask(commands.submit(job_of_parts(told, kind, (on_one, 2), 2), "ada"))["job"]
    desk.until_over(job)
    ranks = written(told)
    assert [rank["BERTH_PART"] for rank in ranks] == ["stage-1"] * on_one + ["stage-2"] * 2 + [
        "servers-1"
    ] * 2
    assert {rank["WORLD_SIZE"] for rank in ranks} == {str(on_one + 4)}
    assert len({rank["BERTH_MACHINE"] for rank in ranks}) == 2
    devices = [(rank["BERTH_MACHINE"], rank["BERTH_DEVICES"]) for rank in ranks[: on_one + 2]]
    assert len(set(devices)) == on_one + 2
