"""A job of unlike parts under Slurm: every part on its machines, by the ranks of its plan."""

from __future__ import annotations

import pytest

from berth.live import commands
from berth.testing.parts import job_of_parts, written

pytestmark = pytest.mark.slow


def test_the_parts_of_a_plan_start_on_their_machines_with_their_ranks(desk, tmp_path):
    one = desk(policy="berth")
    [kind] = one.controller.state.setup.device_type_names
    told = tmp_path / "told"
    told.mkdir()
    job = one.ask(commands.submit(job_of_parts(told, kind, (10, 2), 3), "ada"))["job"]
    one.until_over(job)
    assert (one.over(job)["state"], one.over(job)["shape"]) == ("finished", "planned")
    ranks = written(told)
    parts = ["stage-1"] * 10 + ["stage-2"] * 2 + ["servers-1"] * 3
    assert [rank["BERTH_PART"] for rank in ranks] == parts
    assert {rank["WORLD_SIZE"] for rank in ranks} == {"15"}
    assert len({rank["BERTH_MACHINE"] for rank in ranks}) == 2
    devices = [(rank["BERTH_MACHINE"], rank["BERTH_DEVICES"]) for rank in ranks[:12]]
    assert len(set(devices)) == 12
    assert [rank["BERTH_DEVICES"] for rank in ranks[12:]] == [""] * 3
