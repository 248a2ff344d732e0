"""`berth train` under berth under Slurm: evicted, moved, and not a step lost."""

from __future__ import annotations

import json

import pytest

from berth.live.folder import Folder

pytestmark = pytest.mark.slow


def test_a_training_is_evicted_and_moved_and_ends_as_if_nothing_had_happened(
    desk, slurm, small, training, two_machines, tmp_path
):
    one = desk(cluster=two_machines, policy="srtf")
    job = one.submit(training.command, gpus=8, duration="2h", grace="60s", **training.surroundings)
    one.until(training.has_begun, "it trains")
    [home] = one.machines(job)
    short = one.submit(small.until_file(tmp_path / "enough"), gpus=16, duration="1s")
    one.until_running(short)
    slurm.run("scontrol", "update", f"nodename={home}", "state=drain", "reason=test")
    training.release()
    (tmp_path / "enough").touch()
    one.until_over(job)
    assert (one.over(job)["state"], one.over(job)["attempts"]) == ("finished", 2)

    attempts = [Folder(one.folder / "attempts", token) for token in one.store.tokens_of(job)]
    places = [json.loads(next(f.log(0).parent.glob("launch.json")).read_text()) for f in attempts]
    assert places[0]["members"][0]["machine"] != places[1]["members"][0]["machine"]
    training.assert_preempted(attempts[0].log(0).read_text())
    training.assert_as_if_nothing_had_happened()
