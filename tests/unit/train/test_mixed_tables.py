"""A plan with tables in the memory of one stage and on servers for another is executed as planned."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from berth.cli.main import app
from berth.train.checkpoint import CheckpointStore
from berth.train.fault_points import VARIABLE
from preloaded import programs

pytestmark = pytest.mark.slow

STEPS, SAVED, BATCH = 7, 4, 48
TABLES = ("context_embedding", "candidate_embedding")  # of stage 1 and of stage 2
PLAN = """\
model: nce
devices: [cpu-core]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: {batch}
micro_batches: {replicas}
stages:
  - {{layers: context_embedding .. projection, type: cpu-core, replicas: {replicas}, tables: replicas}}
  - {{layers: candidate_embedding .. loss, type: cpu-core, replicas: {replicas}, tables: servers, servers: {replicas}}}
"""


def train(folder: Path, *more: str, fault: str = "") -> tuple[dict, str]:
    command = [str(programs() / "berth"), "train", "nce", "--json", "--steps", str(STEPS)]
    command += ["--batch", str(BATCH), "--checkpoint", str(folder), "--checkpoint-every", str(SAVED)]
    environment = {**os.environ, **({VARIABLE: fault} if fault else {})}
    done = subprocess.run(
        [*command, "--eval-examples", "96", *more],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def plan(folder: Path, replicas: int) -> tuple[str, str]:
    path = folder / f"plan-{replicas}.yaml"
    path.write_text(PLAN.format(batch=BATCH, replicas=replicas))
    return "--plan", str(path)


def assert_equal(one: tuple[Path, dict], other: tuple[Path, dict], capsys) -> None:
    """Losses and all rows of both tables are equal, bit for bit."""
    for name in ("step", "examples", "loss", "evaluation"):
        assert one[1][name] == other[1][name], name
    for table in TABLES:
        capsys.readouterr()
        app(["table", "diff", str(one[0]), str(other[0]), "--table", table, "--json"], standalone_mode=False)
        rows = json.loads(capsys.readouterr().out)
        assert (rows["changed"], rows["only_first"], rows["only_second"]) == (0, 0, 0)
        assert rows["same"] == one[1]["tables"][table]["rows"] == other[1]["tables"][table]["rows"] > 500


def assert_as_planned(folder: Path, result: dict, said: str, replicas: int) -> None:
    assert "tables of stage 1 in the memory of its workers (sync)" in said
    assert "not started: tables" not in said
    assert [(owner["rank"], owner["stage"]) for owner in result["owners"]] == [
        (rank, 0) for rank in range(replicas)
    ]
    assert [set(server["tables"]) for server in result["servers"]] == [{TABLES[1]}] * replicas
    shards = [f"table-0.shard-{shard}-of-{replicas}" for shard in range(replicas)]
    assert CheckpointStore(folder).chain(STEPS)[-1].tables == {
        TABLES[0]: [f"{shard}.resident.bin" for shard in shards],
        TABLES[1]: [f"{shard}.bin" for shard in shards],
    }


def test_a_plan_with_both_learns_what_one_process_does_also_after_a_kill(tmp_path, capsys):
    """The server, with a budget of memory, is killed once it has written its part of the second checkpoint."""
    alone, _ = train(tmp_path / "alone")
    fault = "server: shard written@2/server0"
    mixed, said = train(tmp_path / "mixed", *plan(tmp_path, 1), "--memory", "8MB", fault=fault)
    assert "server 0 was killed (SIGKILL): restarting all from the last checkpoint" in said
    assert mixed["resumed_from"] == SAVED
    assert_as_planned(tmp_path / "mixed", mixed, said, 1)
    assert_equal((tmp_path / "alone", alone), (tmp_path / "mixed", mixed), capsys)


@pytest.mark.soak
def test_two_replicas_of_both_stages_learn_what_they_do_with_all_tables_on_servers(tmp_path, capsys):
    """Owners add up the gradients of replicas in the order of ranks, as servers do, so every bit is equal."""
    two = plan(tmp_path, 2)
    served, said = train(tmp_path / "served", *two, "--tables", "servers")
    assert "  not started: tables in the memory of workers; they are on servers here" in said
    assert "owners" not in served
    mixed, said = train(tmp_path / "mixed", *two, fault="server: shard written@2/worker1")
    assert "worker 1 was killed (SIGKILL): restarting all from the last checkpoint" in said
    assert mixed["resumed_from"] == SAVED
    assert_as_planned(tmp_path / "mixed", mixed, said, 2)
    assert_equal((tmp_path / "served", served), (tmp_path / "mixed", mixed), capsys)
