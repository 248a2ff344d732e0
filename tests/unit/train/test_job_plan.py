"""A plan in the processes of a job: each process has its role by its rank, and the next plan resumes from the last."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_tree import signal_all
from test_plan_execution import BATCH, differences, plan_file

from berth.errors import InputError
from berth.train.launch_config import resolve, with_role
from berth.train.options import TrainOptions
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from preloaded import forking

STEPS = 12
HELD = """
import os, time
from berth.zoo.catalogue import make_model as zoo_model

def make_model():
    model = zoo_model("ctrdnn-8", 0)
    hold = lambda *_: None if os.path.exists("go") else time.sleep(0.2)
    model.chain["concat"].register_forward_pre_hook(hold)
    return model
"""


def role(plan: Path, rank: int, world_size: int, monkeypatch, **options) -> RankInfo:
    monkeypatch.setenv("BERTH_PLAN", str(plan))
    recipe = make_recipe("ctrdnn-8")
    given = RankInfo(rank, world_size, port=1)
    return with_role(given, resolve(recipe, TrainOptions(plan=str(plan), **options), given, print))


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "halved"), [((2, 3), 4), ((3,), 3)], ids=str)
def test_ranks_after_those_of_the_stages_are_servers(counts, halved, tmp_path, monkeypatch):
    workers, servers = sum(counts), 2
    plan = plan_file(tmp_path, counts, servers)
    last_worker = role(plan, workers - 1, workers + servers, monkeypatch)
    assert last_worker.server is None
    assert (last_worker.world_size, last_worker.processes) == (workers, workers + servers)
    assert [role(plan, workers + n, workers + servers, monkeypatch).server for n in range(servers)] == [0, 1]
    assert role(plan, 0, workers, monkeypatch).servers == 0  # the workers start servers
    assert role(plan, 0, halved, monkeypatch, scale="1/2").servers == 1


def test_no_folder_for_cold_rows_is_created_for_servers_with_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("BERTH_TRAIN_COLD", raising=False)
    assert role(plan_file(tmp_path, (3,), 2), 0, 5, monkeypatch, memory="64MB").servers == 2
    assert not list(tmp_path.glob("berth-cold-*"))


def test_without_the_job_s_plan_ranks_are_workers(tmp_path, monkeypatch):
    plan = plan_file(tmp_path, (3,), 2)
    other = plan_file(tmp_path, (4,), 2)
    monkeypatch.setenv("BERTH_PLAN", str(other))
    given = RankInfo(4, 5, port=1)
    config = resolve(make_recipe("ctrdnn-8"), TrainOptions(plan=str(plan)), given, print)
    assert config.layout.world_size == 5
    assert with_role(given, config).server is None


def test_another_number_of_processes_is_refused_with_both_counts(tmp_path, monkeypatch):
    from berth.train.worker import worker_session

    plan = plan_file(tmp_path, (2, 3), 2)
    monkeypatch.setenv("BERTH_PLAN", str(plan))
    given, recipe = RankInfo(0, 4, port=1), make_recipe("ctrdnn-8")
    config = resolve(recipe, TrainOptions(plan=str(plan)), given, print)
    with pytest.raises(
        InputError, match=r"4 processes were started, but the stages need 2 \+ 3 = 5, or 7 with"
    ):
        worker_session(recipe, config, given)


class Job:
    """The processes of a job, as a supervisor starts them."""

    def __init__(self, folder: Path, plan: Path, processes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.folder = folder
        command = [sys.executable, "-m", "berth", "train", f"{folder / 'held.py'}:make_model"]
        command += f"--steps {STEPS} --checkpoint saved --csv csv --json".split()
        common = {**os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
        common |= {"MASTER_PORT": str(port), "BERTH_PLAN": str(plan), "OMP_NUM_THREADS": "1"}
        with forking():
            self.processes = [
                subprocess.Popen(
                    command,
                    env={**common, "RANK": str(rank)},
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(processes)
            ]

    def stop_once_it_trains(self) -> None:
        csv = self.folder / "csv"
        while not (csv.exists() and len(csv.read_text().splitlines()) > 1):
            assert all(process.poll() is None for process in self.processes), self.end()
            time.sleep(0.05)
        for process in self.processes:  # and the servers they started, first, as when Slurm cancels a job
            signal_all(process.pid, signal.SIGTERM)

    def end(self) -> list[tuple[int, str, str]]:
        try:
            said = [process.communicate(timeout=600) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [(one.returncode, *texts) for one, texts in zip(self.processes, said, strict=True)]


@pytest.mark.slow
@pytest.mark.soak  # tests/live/test_shape_change.py shows it under a controller
def test_a_job_that_changes_its_plan_learns_what_an_undisturbed_one_learns(tmp_path, capsys):
    """Two stages of 2 and 1 with two servers; stopped; then of 1 and 2 with one."""
    (tmp_path / "held.py").write_text(HELD)
    job = Job(tmp_path, plan_file(tmp_path, (2, 1), 2), processes=5)
    job.stop_once_it_trains()
    ended = job.end()
    assert [code for code, *_ in ended] == [0] * 5, ended
    stopped = json.loads(ended[0][1])
    assert stopped["preempted"]
    assert 0 < stopped["step"] < STEPS
    assert [worker["stage"] for worker in stopped["workers"]] == [0, 0, 1]
    assert len(stopped["servers"]) == 2
    assert "server 1 of 2" in ended[4][2]

    (tmp_path / "go").touch()
    ended = Job(tmp_path, plan_file(tmp_path, (1, 2), 1), processes=4).end()
    assert [code for code, *_ in ended] == [0] * 4, ended
    assert f"resuming from step {stopped['step']}" in ended[0][2]
    result = json.loads(ended[0][1])
    assert [worker["stage"] for worker in result["workers"]] == [0, 1, 1]
    assert len(result["servers"]) == 1

    calm_folder = tmp_path / "calm"
    calm_folder.mkdir()
    (calm_folder / "held.py").write_text(HELD)
    (calm_folder / "go").touch()
    calm = json.loads(Job(calm_folder, plan_file(tmp_path, (1,), 1), processes=1).end()[0][1])
    assert (result["step"], result["examples"]) == (STEPS, STEPS * BATCH)
    assert result["loss"] == pytest.approx(calm["loss"], rel=1e-5)
    rows = differences(calm_folder / "saved", tmp_path / "saved", capsys)
    assert (rows["only_first"], rows["only_second"]) == (0, 0)
    assert rows["same"] + rows["changed"] > 100
    assert rows["mean"] < 1e-6
    assert rows["largest"] < 1e-3


@pytest.mark.slow
def test_a_lost_worker_ends_the_servers_too(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    job = Job(tmp_path, plan_file(tmp_path, (1,), 1), processes=2)
    csv = tmp_path / "csv"
    while not csv.exists():
        assert job.processes[0].poll() is None, job.end()
        time.sleep(0.05)
    job.processes[0].kill()
    (_, (code, _, said)) = job.end()
    assert code == 75
    assert "lost rank 0" in said
