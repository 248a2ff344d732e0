"""Plans that really run: processes by stage, what they learn, and what happens when one is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_tree import children

from berth.cli.main import app, main
from berth.train.checkpoint.manifest import NAME as MANIFEST
from berth.train.checkpoint.manifest import folder_of
from berth.train.fault_points import AFTER, VARIABLE
from preloaded import forking, programs

pytestmark = pytest.mark.slow

STEPS, BATCH, SAVED = 12, 48, 6
HEAD = f"""\
model: ctrdnn-8
devices: [cpu-core]
throughput: 10/s
samples: 1000000
rows: 1000000
batch: {BATCH}
micro_batches: 2
stages:
"""
FIRST = "  - {{layers: embedding .. concat, type: cpu-core, replicas: {}, tables: servers, servers: {}}}\n"
SECOND = "  - {{layers: norm .. loss, type: cpu-core, replicas: {}}}\n"
WHOLE = "  - {{layers: embedding .. loss, type: cpu-core, replicas: {}, tables: servers, servers: {}}}\n"


def plan_file(folder: Path, counts: tuple[int, ...], servers: int = 1) -> Path:
    """Writes a plan with these replicas of its one or two stages."""
    path = folder / f"plan-{'-'.join(map(str, counts))}-{servers}.yaml"
    stages = WHOLE.format(counts[0], servers)
    if len(counts) > 1:
        stages = FIRST.format(counts[0], servers) + SECOND.format(counts[1])
    path.write_text(HEAD + stages)
    return path


def command(plan: Path, *more: str, steps: int = STEPS) -> list[str]:
    return [
        str(programs() / "berth"),
        "train",
        "ctrdnn-8",
        "--plan",
        str(plan),
        "--steps",
        str(steps),
        *more,
    ]


def train(plan: Path, folder: Path, *more: str, fault: str = "", steps: int = STEPS) -> tuple[dict, str]:
    saved = ("--checkpoint", str(folder), "--checkpoint-every", str(SAVED), "--json")
    done = subprocess.run(
        command(plan, *saved, *more, steps=steps),
        capture_output=True,
        text=True,
        env={**os.environ, **({VARIABLE: fault} if fault else {})},
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


class Runs:
    """Runs by replicas of their stages, each made when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.folder, self.made = factory.mktemp("planned"), {}

    def __getitem__(self, counts: tuple[int, ...]) -> tuple[Path, dict]:
        if counts not in self.made:
            folder = self.folder / "-".join(map(str, counts))
            servers = 2 if counts == (2, 3) else 1
            self.made[counts] = folder, train(plan_file(self.folder, counts, servers), folder)[0]
        return self.made[counts]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory)


UNEQUAL = [
    (1, 2),
    (2, 3),
    pytest.param((3,), marks=pytest.mark.soak),
    pytest.param((2, 1), marks=pytest.mark.soak),
]


def differences(one: Path, other: Path, capsys) -> dict:
    capsys.readouterr()
    app(["table", "diff", str(one), str(other), "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("counts", UNEQUAL, ids=str)
def test_replicas_learn_what_one_replica_per_stage_learns(counts, runs, capsys):
    """Loss, AUC, rows and weights, up to the order of sums."""
    (alone, expected), (folder, result) = runs[1, 1], runs[counts]
    assert (result["step"], result["examples"]) == (STEPS, STEPS * BATCH)
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert result["auc"] == pytest.approx(expected["auc"], abs=1e-4)
    rows = differences(alone, folder, capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["mean"] < 1e-6
    assert rows["largest"] < 1e-3


@pytest.mark.parametrize("counts", [(1, 1), *UNEQUAL], ids=str)
def test_every_replica_of_every_stage_computes_its_part_of_every_micro_batch(counts, runs):
    result = runs[counts][1]
    workers = result["workers"]
    assert len({worker["pid"] for worker in workers}) == sum(counts)
    micro_batches = STEPS * (2 if len(counts) > 1 else 1)
    for stage, count in enumerate(counts):
        ranks = [worker for worker in workers if worker["stage"] == stage]
        assert sorted(worker["replica"] for worker in ranks) == list(range(count))
        assert [worker["micro_batches"] for worker in ranks] == [micro_batches] * count
        assert [worker["examples"] for worker in ranks] == [STEPS * BATCH // count] * count
    assert len(result["servers"]) == result["plan"]["servers_planned"] == (2 if counts == (2, 3) else 1)


def test_predicted_and_measured_are_compared_by_stage(runs):
    plan = runs[2, 3][1]["plan"]
    assert (plan["batch"], plan["micro_batches"], plan["scale"]) == (BATCH, 2, "1")
    assert [(stage["planned"], stage["started"]) for stage in plan["stages"]] == [(2, 2), (3, 3)]
    for stage in plan["stages"]:
        assert stage["source"] == "measured"
        assert 0 < stage["predicted_s"] < plan["predicted_step_s"]
        assert 0 < stage["measured_s"] <= plan["measured_step_s"]
    assert plan["predicted_examples_per_s"] == pytest.approx(BATCH / plan["predicted_step_s"])
    assert plan["predicted_examples_per_s"] == pytest.approx(plan["planned_examples_per_s"], rel=0.2)
    assert plan["measured_examples_per_s"] == runs[2, 3][1]["examples_per_s"]
    assert any("reader" in text for text in plan["not_started"])


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 2), (2,)), pytest.param((3,), (2, 1), marks=pytest.mark.soak)],
    ids=str,
)
def test_a_checkpoint_resumes_with_other_stages_replicas_and_servers(before, after, runs, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(runs[before][0], folder)
    shutil.rmtree(folder_of(folder, STEPS))
    resumed, said = train(plan_file(tmp_path, after, servers=2), folder)
    assert f"resuming from step {SAVED}" in said
    assert (resumed["resumed_from"], len(resumed["servers"])) == (SAVED, 2)
    assert len(resumed["workers"]) == sum(after)
    expected_folder, expected = runs[1, 1]
    assert resumed["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    rows = differences(expected_folder, folder, capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["largest"] < 1e-3


@pytest.mark.soak  # test_resident_runs.py kills a worker, test_multiprocess.py a server
def test_a_killed_replica_is_restarted_to_the_same_result(runs, tmp_path, capsys, monkeypatch):
    folder, untouched = runs[1, 2]
    monkeypatch.setenv(AFTER, str(folder_of(tmp_path / "run", SAVED) / MANIFEST))
    result, said = train(plan_file(tmp_path, (1, 2)), tmp_path / "run", fault="step@9/worker2")
    assert "worker 2 was killed (SIGKILL): restarting all from the last checkpoint" in said
    assert (result["resumed_from"], result["loss"]) == (SAVED, untouched["loss"])
    rows = differences(folder, tmp_path / "run", capsys)
    assert (rows["changed"], rows["only_first"], rows["only_second"]) == (0, 0, 0)


def test_as_many_processes_run_as_planned_and_a_kill_ends_the_run_with_one_message(tmp_path):
    """Rank 2 is the second replica of stage 2; without checkpoints its loss is the end."""
    log = tmp_path / "log.csv"
    started = command(plan_file(tmp_path, (1, 2)), "--csv", str(log), steps=10**6)
    with forking():
        process = subprocess.Popen(
            [sys.executable, "-m", "berth", *started[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stderr is not None
        head = [process.stderr.readline() for _ in range(5)]
        assert head[1] == "  started: 3 workers, 1 server (sync)\n"
        assert head[3] == "  stage 2: norm .. loss; planned 2 x cpu-core, started 2 processes\n"
        deadline = time.monotonic() + 300
        while not (log.exists() and len(log.read_text().splitlines()) > 2):  # they train
            assert time.monotonic() < deadline
            time.sleep(0.1)
        server_and_workers = children(process.pid)
        assert len(server_and_workers) == 4
        os.kill(server_and_workers[-1], signal.SIGKILL)
        out, said = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 1
    assert said == "worker 2 was killed (SIGKILL); can't resume without --checkpoint\n"
    assert out == ""
    assert not any(Path("/proc", str(pid)).exists() for pid in server_and_workers)


def test_a_scaled_run_prints_what_it_starts_and_the_comparison(tmp_path):
    plan = plan_file(tmp_path, (10, 30), servers=11)
    done = subprocess.run(
        command(plan, "--scale", "1/30", steps=4), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[:2] == [
        f"{plan}: planned 40 workers in 2 stages, 11 servers, 1 reader",
        "  started at scale 1/30: 2 workers, 1 server (sync)",
    ]
    assert "not started: 38 workers (--scale 1/30)" in done.stdout
    assert "not started: 10 servers of 11" in done.stdout
    assert "1 of 30" in done.stdout
    assert "whole step" in done.stdout
    assert "examples/s" in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--scale", "1/0"), 'error: --scale: expected a fraction above 0 and up to 1, got "1/0"'),
        (("--scale", "some"), 'error: --scale: expected a fraction above 0 and up to 1, got "some"'),
        (("--workers", "2"), "error: --plan and --workers exclude each other"),
        (("--mode", "async"), "the plan is for mode sync, not async"),
        ((), "the plan has 2,111 processes, this machine"),
    ],
    ids=["nothing", "not understood", "workers", "mode", "too large"],
)
def test_a_mistake_is_one_message_and_exit_code_2(more, message, tmp_path, monkeypatch, capsys):
    plan = plan_file(tmp_path, (100, 2000), servers=11)
    monkeypatch.setattr(sys, "argv", command(plan, *more))
    with pytest.raises(SystemExit) as ended:
        main()
    out, said = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert message in said
    assert len(said.strip().splitlines()) == 2  # what is wrong, and what to do
