"""Runs whose tables are in the memory of their workers: what they learn, save and resume, and that no server exists."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from berth.cli.main import app
from berth.train.checkpoint import CheckpointStore
from berth.train.checkpoint.manifest import folder_of
from berth.train.fault_points import VARIABLE
from berth.train.tables.hashing import shard_of
from preloaded import programs

pytestmark = pytest.mark.slow

STEPS, SAVED, BATCH = 7, 4, 48
RESIDENT = ("--workers", "2", "--tables", "resident")
SERVED = ("--workers", "2", "--servers", "1")
PLAN = f"""\
model: ctrdnn-8
devices: [cpu-core, T4]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: {BATCH}
micro_batches: 2
stages:
  - {{layers: embedding .. concat, type: T4, replicas: 4, tables: replicas}}
  - {{layers: norm .. loss, type: cpu-core, replicas: 6}}
"""


def train(folder: Path, *more: str, steps: int = STEPS, fault: str = "") -> tuple[dict, str]:
    command = [str(programs() / "berth"), "train", "ctrdnn-8", "--json", "--steps", str(steps)]
    command += ["--batch", str(BATCH), "--checkpoint", str(folder), "--checkpoint-every", str(SAVED), *more]
    environment = {**os.environ, **({VARIABLE: fault} if fault else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def differences(one: Path, other: Path, capsys) -> dict:
    capsys.readouterr()
    app(["table", "diff", str(one), str(other), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("resident")


@pytest.fixture(scope="module")
def served(folder):
    return train(folder / "served", *SERVED)[0]


@pytest.fixture(scope="module")
def two(folder):
    """An undisturbed run of two workers, and what it printed.

    Its last step is evaluated and saved though neither is due by its number.
    """
    log = ("--csv", str(folder / "two.csv"))
    return train(folder / "two", *RESIDENT, *log, "--eval-examples", "96", "--eval-every", str(SAVED))


@pytest.fixture(scope="module")
def staged(folder):
    """2 and 3 replicas of the stages of a plan; the first, with the tables, is on the stand-in accelerator."""
    (folder / "plan.yaml").write_text(PLAN)
    more = ("--plan", str(folder / "plan.yaml"), "--scale", "1/2", "--map", "T4=standin")
    return train(folder / "staged", *more, "--eval-examples", "96", "--csv", str(folder / "staged.csv"))


def test_rows_and_loss_are_those_of_servers_and_no_server_exists(two, served, folder, capsys):
    """Owners add up gradients in the order of ranks, as servers do, so every bit is equal."""
    found, said = two
    assert "tables in the memory of workers (sync), 2 x 1 workers" in said
    assert "servers" not in found
    assert (found["loss"], found["auc"]) == (served["loss"], served["auc"])
    rows = differences(folder / "served", folder / "two", capsys)
    assert (rows["changed"], rows["only_first"], rows["only_second"]) == (0, 0, 0)
    assert (found["evaluation"]["examples"], found["evaluation"]["step"]) == (96, STEPS)


@pytest.mark.parametrize("name", ["two", "staged"])
def test_metrics_over_time_count_the_rows_of_all_workers(name, folder, request):
    found, _ = request.getfixturevalue(name)
    with (folder / f"{name}.csv").open() as file:
        *_, last = csv.DictReader(file)
    assert int(last["step"]) == STEPS
    assert int(last["rows"]) == sum(table["rows"] for table in found["tables"].values())


def test_every_worker_holds_and_saves_its_share_of_the_rows(two, folder):
    found, _ = two
    total = found["tables"]["embedding"]["rows"]
    assert [owner["rank"] for owner in found["owners"]] == [0, 1]
    assert sum(owner["rows"] for owner in found["owners"]) == total > 1000
    for owner in found["owners"]:
        assert 0.4 * total < owner["rows"] < 0.6 * total
        assert owner["memory_bytes"] < 0.7 * found["tables"]["embedding"]["memory_bytes"]
        assert owner["exchanged_bytes"] > 0
    store = CheckpointStore(folder / "two")
    manifest = store.chain(STEPS)[-1]
    assert manifest.tables["embedding"] == [f"table-0.shard-{shard}-of-2.bin" for shard in range(2)]
    chain = store.chain(store.steps()[0])
    keys = [state.keys for state in store._parts(chain[-1], "embedding")]
    owners = [set(shard_of(part, 2).tolist()) for part in keys if len(part)]
    assert owners == [{0}, {1}]


def test_stages_with_unequal_replicas_and_a_device_learn_the_same(staged, two, folder, capsys):
    found, said = staged
    assert "  started at scale 1/2: 5 workers, tables in their memory (sync)" in said
    assert not any("tables" in text for text in found["plan"]["not_started"])
    assert "servers" not in found
    assert found["loss"] == pytest.approx(two[0]["loss"], rel=1e-5)
    rows = differences(folder / "two", folder / "staged", capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["largest"] < 1e-3
    assert found["evaluation"]["auc"] == pytest.approx(two[0]["evaluation"]["auc"], abs=1e-3)
    assert [(owner["rank"], owner["stage"]) for owner in found["owners"]] == [(0, 0), (1, 0)]
    assert all(owner["device_bytes"] >= 4 * 32 * owner["rows"] // 2 for owner in found["owners"])
    assert found["device_cache"]["embedding"]["rows"] == found["tables"]["embedding"]["rows"]
    assert [worker["device"] for worker in found["workers"]] == ["standin"] * 2 + ["cpu"] * 3
    first = found["plan"]["stages"][0]
    assert first["tables"] == "replicas"
    assert first["exchange_predicted_s"] > 0
    assert first["exchange_measured_s"] > 0


THREE = ("--workers", "3", "--tables", "resident")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RESIDENT, SERVED),
        (SERVED, RESIDENT),
        pytest.param(THREE, SERVED, marks=pytest.mark.soak),
        pytest.param((), (*RESIDENT, "--stages", "2"), marks=pytest.mark.soak),
        pytest.param(RESIDENT, (), marks=pytest.mark.soak),
        pytest.param(RESIDENT, THREE, marks=pytest.mark.soak),
    ],
    ids=["2 to a server", "server to 2", "3 to a server", "1 to stages", "2 to 1", "2 to 3"],
)
def test_a_checkpoint_resumes_wherever_the_tables_are(before, after, two, served, folder, tmp_path, capsys):
    made = {RESIDENT: folder / "two", SERVED: folder / "served"}
    if before in made:
        shutil.copytree(made[before], tmp_path / "run")
        shutil.rmtree(folder_of(tmp_path / "run", STEPS))
    else:
        train(tmp_path / "run", *before, steps=SAVED)
    found, said = train(tmp_path / "run", *after)
    assert f"resuming from step {SAVED}" in said
    assert found["loss"] == pytest.approx(two[0]["loss"], rel=1e-5)
    rows = differences(folder / "two", tmp_path / "run", capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["largest"] < 1e-3


def test_a_killed_owner_is_restarted_to_the_same_result(two, folder, tmp_path, capsys):
    """Its second shard is written, but rank 0 does not know it: only the first checkpoint is complete."""
    found, said = train(tmp_path / "run", *RESIDENT, fault="server: shard written@2/worker1")
    assert "worker 1 was killed (SIGKILL): restarting all from the last checkpoint" in said
    assert found["resumed_from"] == SAVED
    assert found["loss"] == two[0]["loss"]
    rows = differences(folder / "two", tmp_path / "run", capsys)
    assert (rows["changed"], rows["only_first"], rows["only_second"]) == (0, 0, 0)


WIDE = """\
import torch
from berth.train import Embedding


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = Embedding(64, name="rows")
        self.top = torch.nn.Linear(26 * 64, 1)

    def forward(self, inputs):
        return self.top(self.rows(inputs["slots"]).flatten(1)).squeeze(1)


def make_model():
    return Wide()
"""


def test_a_shard_beyond_the_memory_of_its_device_ends_the_run_with_what_to_do(tmp_path):
    (tmp_path / "wide.py").write_text(WIDE)
    command = [str(programs() / "berth"), "train", f"{tmp_path}/wide.py:make_model", "--batch", "64"]
    done = subprocess.run(
        [*command, "--steps", "30", *RESIDENT, "--device", "standin"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "BERTH_STANDIN_MEMORY": "2000000"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "standin is out of memory: " in done.stderr
    assert "rows of table 'rows' have" in done.stderr
    assert "use more workers, a smaller --batch, or --tables servers" in done.stderr
