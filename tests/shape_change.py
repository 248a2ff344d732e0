"""A job with two plans on any back end: started as the first, evicted, resumed as the second from its checkpoint.

A test opens a controller and calls `start`, `evict` and `finish`; `assert_learned_the_same` compares rows and loss with
an undisturbed run in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from berth.testing.up import SOURCE, Up, until
from preloaded import programs

STEPS, BATCH = 12, 48
ENVIRONMENT = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"} | {
    name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ
}
HEAD = """\
model: ctrdnn-8
devices: [cpu-core, {device_type}]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: {batch}
micro_batches: 2
stages:
"""
# Each step waits until the file `go` is in the folder of the run.
HELD = """
import os, time
from berth.zoo.catalogue import make_model as zoo_model

def make_model():
    model = zoo_model("ctrdnn-8", 0)
    hold = lambda *_: None if os.path.exists("go") else time.sleep(0.2)
    model.chain["concat"].register_forward_pre_hook(hold)
    return model
"""


@dataclass(frozen=True)
class Stage:
    """Layers of the model on replicas of a device type; its tables are on a server."""

    layers: str
    device_type: str
    replicas: int

    def __str__(self) -> str:
        tables = ", tables: servers, servers: 1" if self.layers.startswith("embedding") else ""
        words = f"layers: {self.layers}, type: {self.device_type}, replicas: {self.replicas}"
        return f"  - {{{words}{tables}}}\n"


@dataclass(frozen=True)
class Plan:
    """A plan by its name, which is that of the alternative."""

    name: str
    stages: tuple[Stage, ...]

    def text(self, device_type: str) -> str:
        """Return the plan file."""
        return HEAD.format(batch=BATCH, device_type=device_type) + "".join(map(str, self.stages))

    @property
    def stage_of_rank(self) -> list[int]:
        """Return the stages of its workers, in rank order."""
        return [number for number, stage in enumerate(self.stages) for _ in range(stage.replicas)]


class ShapeChange:
    """The job, and what each of its attempts reported."""

    def __init__(self, folder: Path, device_type: str, first: Plan, second: Plan) -> None:
        self.folder, self.device_type, self.plans = folder, device_type, (first, second)
        self.moved, self.calm = folder / "moved", folder / "calm"
        for plan in self.plans:
            self._file(plan).write_text(plan.text(device_type))
        for each in (self.moved, self.calm):
            each.mkdir()
            (each / "held.py").write_text(HELD)
        (self.calm / "go").touch()
        self.job = ""

    def _file(self, plan: Plan) -> Path:
        return self.folder / f"{plan.name}.yaml"

    def _job_file(self) -> Path:
        command = [str(programs() / "berth"), "train", str(self.moved / "held.py:make_model")]
        command += f"--steps {STEPS} --checkpoint saved --csv csv --json".split()
        job = {
            "name": "ctr",
            "run": command,
            "work": "100000 steps",
            "grace": "300s",
            "cwd": str(self.moved),
            "env": ENVIRONMENT,
            "alternatives": [{"plan": self._file(plan).name} for plan in reversed(self.plans)],
        }
        file = self.folder / "job.yaml"
        file.write_text(json.dumps(job))  # JSON is YAML
        return file

    def start(self, live: Up) -> None:
        """Submit the job, wait for its first step, and make the file of the plan that runs unreadable."""
        self.job = live.json("submit", str(self._job_file()))["job"]
        csv = self.moved / "csv"
        until(lambda: csv.exists() and len(csv.read_text().splitlines()) > 1)
        self._file(self.plans[0]).write_text("changed: since its submission\n")

    def evict(self, live: Up, devices: int) -> None:
        """Submit a job of a higher priority that takes this number of devices until `finish`."""
        hog = live.submit(
            f"until test -e {self.folder}/enough; do sleep 0.1; done",
            gpus=devices,
            kind=self.device_type,
            duration="10h",  # too long to wait for the first plan
            priority=5,
        )
        until(lambda: live.state_of(hog) == "running")

    def finish(self, live: Up) -> None:
        """Let the job train to its end."""
        (self.moved / "go").touch()
        until(lambda: live.state_of(self.job) in ("finished", "failed"))
        (self.folder / "enough").touch()

    def places(self, live: Up) -> list[dict[str, int]]:
        """Return the devices of each attempt by machine."""
        attempts = live.client.get("jobs", self.job, "history")["attempts"]
        return [one["places"] for one in attempts]

    def assert_resumed_as_the_second(self, live: Up) -> None:
        """One eviction, and what the first attempt had trained was not trained again."""
        first, second = self.plans
        row = live.client.get("jobs", self.job)
        assert (row["state"], row["attempts"], row["evictions"]) == ("finished", 2, 1)
        attempts = live.client.get("jobs", self.job, "history")["attempts"]
        assert [one["shape"] for one in attempts] == [first.name, second.name]
        logs = [live.client.text("jobs", self.job, "logs", attempt=number)[0] for number in (1, 2)]
        before, after = map(_document, logs)
        assert before["preempted"]
        assert 0 < before["step"] < STEPS
        assert [worker["stage"] for worker in before["workers"]] == first.stage_of_rank
        assert [worker["stage"] for worker in after["workers"]] == second.stage_of_rank
        assert f"resuming from step {before['step']}" in logs[1]

    def assert_learned_the_same(self, live: Up) -> None:
        """Rows and loss are those of an undisturbed run, within the order of sums."""
        last = _document(live.client.text("jobs", self.job, "logs", attempt=2)[0])
        calm = self._train_undisturbed()
        assert (last["step"], last["examples"]) == (STEPS, STEPS * BATCH)
        assert last["loss"] == pytest.approx(calm["loss"], rel=1e-5)
        rows = live.json("table", "diff", str(self.calm / "saved"), str(self.moved / "saved"))
        assert (rows["only_first"], rows["only_second"]) == (0, 0)
        assert rows["same"] + rows["changed"] > 100
        assert rows["mean"] < 1e-6
        assert rows["largest"] < 1e-3

    def _train_undisturbed(self) -> dict[str, Any]:
        """What one process with one server learns."""
        one = Plan("one", (Stage("embedding .. loss", "cpu-core", 1),))
        self._file(one).write_text(one.text(self.device_type))
        words = f"--plan {self._file(one)} --steps {STEPS} --checkpoint saved --json".split()
        done = subprocess.run(
            [programs() / "berth", "train", str(self.calm / "held.py:make_model"), *words],
            cwd=self.calm,
            env=os.environ | ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        return dict(json.loads(done.stdout))


def _document(log: str) -> dict[str, Any]:
    """The JSON at the end of a log."""
    return dict(json.loads(log[log.index("\n{") + 1 :] if not log.startswith("{") else log))


def two_stages_to_three(device_type: str) -> tuple[Plan, Plan]:
    """Return a plan of two stages on three devices and one of three stages on two; the first stages run on cores."""
    first = Stage("embedding .. concat", "cpu-core", 2), Stage("norm .. loss", device_type, 3)
    second = (
        Stage("embedding .. concat", "cpu-core", 1),
        Stage("norm .. fc1", device_type, 1),
        Stage("fc2 .. loss", device_type, 1),
    )
    return Plan("wide", first), Plan("deep", second)
