"""A real `berth up` in a process of its own, which tests may kill, and a real training to be moved about."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import berth
from berth.testing.up import Up
from forked_up import ForkedUp
from preloaded import programs


@pytest.fixture
def up(tmp_path):
    made: list[Up] = []

    def make(*options: str) -> Up:
        made.append(ForkedUp(tmp_path / f"state-{len(made)}", *options))
        return made[-1].start()

    yield make
    for one in made:
        if one.process.poll() is None:
            one.clear()


HELD = """
import os, time
from berth.zoo.catalogue import make_model as zoo_model

def make_model():
    model = zoo_model("ctrdnn-8", 0)
    model.register_forward_pre_hook(lambda *_: None if os.path.exists("go") else time.sleep(2.0))
    return model
"""


class Training:
    """`berth train` with checkpoints, as a job's command, and the same without any disturbance.

    Each step takes two seconds until `release`, so that it can't end before it is preempted.
    """

    STEPS = 150
    ENV = {"PYTHONPATH": str(Path(berth.__file__).parents[1]), "OMP_WAIT_POLICY": "passive"}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.calm, self.moved = folder / "calm", folder / "moved"
        for each in (self.calm, self.moved):
            each.mkdir()
        (self.calm / "go").touch()
        held = folder / "held.py"
        held.write_text(HELD)
        options = f"train {held}:make_model --batch 64 --steps {self.STEPS} --checkpoint saved --csv csv"
        self.berth = str(programs() / "berth")
        self.command = [self.berth, *options.split()]
        self.surroundings = {"cwd": str(self.moved), "env": self.ENV}

    def has_begun(self) -> bool:
        file = self.moved / "csv"
        return file.exists() and len(file.read_text().splitlines()) > 1

    def release(self) -> None:
        (self.moved / "go").touch()

    def assert_preempted(self, log: str) -> None:
        stopped = re.search(r"preempted at step (\d+)", log)
        assert stopped, log
        assert 0 < int(stopped[1]) < self.STEPS

    def assert_as_if_nothing_had_happened(self) -> None:
        self._run(self.command, cwd=self.calm)
        self.assert_same_tables()

    def assert_same_tables(self) -> None:
        reported = json.loads(
            self._run(
                [self.berth, "table", "diff", str(self.calm / "saved"), str(self.moved / "saved"), "--json"]
            )
        )
        assert reported["steps"] == [self.STEPS, self.STEPS]
        assert (reported["only_first"], reported["only_second"], reported["changed"]) == (0, 0, 0)
        assert reported["same"] > 0

    def _run(self, command: list[str], cwd: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | self.ENV,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        return done.stdout


@pytest.fixture
def training(tmp_path_factory):
    """In a folder of its own: a state folder holds nothing else."""
    return Training(tmp_path_factory.mktemp("training"))
