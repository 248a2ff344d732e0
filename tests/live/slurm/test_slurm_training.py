"""`berth train` under berth under Slurm: evicted, moved, and not a step lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import berth
from berth.live.folder import Folder

pytestmark = pytest.mark.slow

STEPS = 600
BERTH = [sys.executable, "-m", "berth"]
TRAIN = [
    *BERTH,
    "train",
    "ctrdnn-8",
    "--batch",
    "64",
    "--steps",
    str(STEPS),
    "--checkpoint",
    "saved",
    "--csv",
    "csv",
]
ENV = {"PYTHONPATH": str(Path(berth.__file__).parents[1]), "OMP_WAIT_POLICY": "passive"}


def test_a_training_is_evicted_and_moved_and_ends_as_if_nothing_had_happened(
    desk, slurm, tmp_path, two_machines
):
    calm, moved = tmp_path / "calm", tmp_path / "moved"
    for folder in (calm, moved):
        folder.mkdir()
    one = desk(cluster=two_machines, policy="srtf")
    training = one.submit(TRAIN, gpus=8, duration="2h", grace="60s", cwd=str(moved), env=ENV)
    one.until(lambda: rows_in(moved / "csv") > 0, "it trains")
    [home] = one.machines(training)
    short = one.submit("sleep 1", gpus=16, duration="1s")
    one.until_running(short)
    slurm.run("scontrol", "update", f"nodename={home}", "state=drain", "reason=test")
    subprocess.run(TRAIN, cwd=calm, env=os.environ | ENV, capture_output=True, timeout=120, check=True)
    one.until_over(training)
    assert (one.over(training)["state"], one.over(training)["attempts"]) == ("finished", 2)

    attempts = [Folder(one.folder / "attempts", f"{one.store.name}-{training}.{number}") for number in (1, 2)]
    places = [json.loads(next(f.log(0).parent.glob("launch.json")).read_text()) for f in attempts]
    assert places[0]["members"][0]["machine"] != places[1]["members"][0]["machine"]
    stopped = re.search(r"preempted at step (\d+)", attempts[0].log(0).read_text())
    assert stopped, attempts[0].log(0).read_text()
    assert 0 < int(stopped[1]) < STEPS
    done = subprocess.run(
        [*BERTH, "table", "diff", str(calm / "saved"), str(moved / "saved"), "--json"],
        env=os.environ | ENV,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["steps"] == [STEPS, STEPS]
    assert (told["only_first"], told["only_second"], told["changed"]) == (0, 0, 0)
    assert told["same"] > 0


def rows_in(file: Path) -> int:
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0
