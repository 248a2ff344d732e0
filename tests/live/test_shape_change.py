"""A job with two plans on this machine: started as one, evicted, resumed as the other, with the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from berth.testing.up import SOURCE, until

pytestmark = pytest.mark.slow

STEPS, BATCH = 12, 48
ENVIRONMENT = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"} | {
    name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ
}
CLUSTER = """\
racks:
  - machines: [{name: gpus, devices: {T4: 2}}, {name: cores, devices: {cpu-core: 6}}]
"""
PLAN = """\
model: ctrdnn-8
devices: [cpu-core, T4]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: {batch}
micro_batches: 2
stages:
"""
FIRST = "  - {{layers: embedding .. concat, type: cpu-core, replicas: {}, tables: servers, servers: 1}}\n"
SECOND = "  - {{layers: norm .. loss, type: {}, replicas: {}}}\n"
HELD = """
import os, time
from berth.zoo.catalogue import make_model as zoo_model

def make_model():
    model = zoo_model("ctrdnn-8", 0)
    hold = lambda *_: None if os.path.exists("go") else time.sleep(0.2)
    model.chain["concat"].register_forward_pre_hook(hold)
    return model
"""


@pytest.fixture
def folder(tmp_path_factory):
    """In a folder of its own: a state folder holds nothing else."""
    found = tmp_path_factory.mktemp("shapes")
    head = PLAN.format(batch=BATCH)
    (found / "lab.yaml").write_text(CLUSTER)
    (found / "with-gpu.yaml").write_text(head + FIRST.format(2) + SECOND.format("T4", 1))
    (found / "cores.yaml").write_text(head + FIRST.format(1) + SECOND.format("cpu-core", 2))
    for each in ("moved", "calm"):
        (found / each).mkdir()
        (found / each / "held.py").write_text(HELD)
    (found / "calm" / "go").touch()
    return found


def job_file(folder: Path) -> Path:
    command = [sys.executable, "-m", "berth", "train", str(folder / "moved/held.py:make_model")]
    command += f"--steps {STEPS} --checkpoint saved --csv csv --json".split()
    job = {
        "name": "ctr",
        "run": command,
        "work": "100000 steps",  # long enough that another job goes first
        "grace": "300s",
        "cwd": str(folder / "moved"),
        "env": ENVIRONMENT,
        "alternatives": [{"plan": "cores.yaml"}, {"plan": "with-gpu.yaml"}],
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(job))  # JSON is YAML
    return file


def trained(folder: Path) -> dict:
    """What an undisturbed run learns: one process, one server."""
    (folder / "one.yaml").write_text(
        PLAN.format(batch=BATCH)
        + "  - {layers: embedding .. loss, type: cpu-core, replicas: 1, tables: servers, servers: 1}\n"
    )
    words = f"--plan {folder / 'one.yaml'} --steps {STEPS} --checkpoint saved --json".split()
    done = subprocess.run(
        [sys.executable, "-m", "berth", "train", str(folder / "calm/held.py:make_model"), *words],
        cwd=folder / "calm",
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return json.loads(done.stdout)


def document(log: str) -> dict:
    """The JSON at the end of a log."""
    return json.loads(log[log.index("\n{") + 1 :] if not log.startswith("{") else log)


def test_an_evicted_job_resumes_as_another_plan_and_learns_the_same(up, folder):
    live = up("--cluster", str(folder / "lab.yaml"), "--policy", "srtf")
    others = live.submit("sleep 9999", gpus=2, kind="cpu-core", duration="10h", grace="0s", priority=5)
    until(lambda: live.state_of(others) == "running")
    job = live.json("submit", str(job_file(folder)))["job"]  # of its plans only the one with a T4 fits now
    csv = folder / "moved" / "csv"
    until(lambda: csv.exists() and len(csv.read_text().splitlines()) > 1)
    (folder / "with-gpu.yaml").write_text("changed: since its submission\n")
    live.client.post("jobs", others, "cancel")
    until(lambda: live.state_of(others) == "cancelled")
    hog = live.submit(
        f"until test -e {folder}/enough; do sleep 0.1; done", gpus=2, kind="T4", duration="1s", priority=5
    )
    until(lambda: live.state_of(hog) == "running")
    (folder / "moved" / "go").touch()
    until(lambda: live.state_of(job) == "finished")
    (folder / "enough").touch()

    row = live.client.get("jobs", job)
    assert (row["attempts"], row["evictions"], row["shape"]) == (2, 1, "cores")
    attempts = live.client.get("jobs", job, "history")["attempts"]
    assert [one["shape"] for one in attempts] == ["with-gpu", "cores"]
    assert [one["places"] for one in attempts] == [{"gpus": 1, "cores": 4}, {"cores": 5}]  # a reader each
    logs = [live.client.text("jobs", job, "logs", attempt=number)[0] for number in (1, 2)]
    first, last = map(document, logs)
    assert first["preempted"]
    assert 0 < first["step"] < STEPS
    assert [worker["stage"] for worker in first["workers"]] == [0, 0, 1]
    assert [worker["stage"] for worker in last["workers"]] == [0, 1, 1]
    assert f"resuming from step {first['step']}" in logs[1]

    calm = trained(folder)
    assert (last["step"], last["examples"]) == (STEPS, STEPS * BATCH)
    assert last["loss"] == pytest.approx(calm["loss"], rel=1e-5)
    rows = live.json("table", "diff", str(folder / "calm/saved"), str(folder / "moved/saved"))
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["same"] + rows["changed"] > 100
    assert rows["mean"] < 1e-6
    assert rows["largest"] < 1e-3
    assert live.berth("replay", str(live.state)).stdout.endswith("0 differences\n")
