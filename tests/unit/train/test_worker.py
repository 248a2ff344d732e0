"""Processes that berth did not launch find each other, and no stranger can join them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.train.heartbeat import InProcessStore
from berth.train.launch_config import LaunchConfig
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.run_secret import JOB_FOLDER, run_secret, secret_file, shared_secret
from berth.train.servers import Secret
from berth.train.servers.auth import SECRET_VARIABLE
from berth.train.stages.cut import Layout
from berth.train.worker import worker_session
from preloaded import forking, programs


def test_a_secret_in_a_file_is_for_its_owner_alone_and_goes_away():
    secret = Secret.random()
    with secret_file(secret) as path:
        assert Path(path).stat().st_mode & 0o077 == 0
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        assert Secret.find(path).environment() == secret.environment()
    assert not Path(path).exists()


def test_a_published_path_counts_only_if_the_file_is_private(monkeypatch, tmp_path):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    folder = tmp_path / "berth-secret-1"
    folder.mkdir()
    known, link, other = folder / "known", folder / "link", tmp_path / "other"
    other.touch(mode=0o600)
    known.write_text("readable by every user of this machine")
    link.symlink_to(known)
    for path in (known, link, other, tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=r"not a private file|can't be read"):
            shared_secret(str(path))
    known.chmod(0o600)
    assert shared_secret(str(known)).environment() == Secret.find(known).environment()


def test_the_secret_of_the_environment_goes_before_a_published_path(monkeypatch, tmp_path):
    secret, other = Secret.random(), tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("0123456789abcdef0123456789abcdef")
    monkeypatch.setenv(SECRET_VARIABLE, secret.environment()[SECRET_VARIABLE])
    assert shared_secret(str(other)).environment() == secret.environment()


def test_on_several_hosts_without_a_common_disk_a_secret_must_be_given(monkeypatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    store = InProcessStore()
    with ExitStack() as keep:
        secret = run_secret(store, keep, is_main=True)
        assert run_secret(store, keep, is_main=False).environment() == secret.environment()  # the same disk
    with pytest.raises(InputError, match="need a shared secret: set BERTH_TRAIN_SECRET"):
        run_secret(store, keep, is_main=False)


def test_a_job_of_the_controller_shares_its_secret_in_its_own_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    monkeypatch.setenv(JOB_FOLDER, str(tmp_path))
    with ExitStack() as keep:
        run_secret(InProcessStore(), keep, is_main=True)
        assert [path.stat().st_mode & 0o777 for path in tmp_path.glob("berth-secret-*/secret")] == [0o600]
    assert not any(tmp_path.iterdir())


def test_as_many_processes_as_the_division_needs_are_wanted():
    recipe, here = make_recipe("nce", batch=8), RankInfo(0, 3, "127.0.0.1", 1)
    with pytest.raises(InputError, match=r"3 processes were started, but the stages need 2$"):
        worker_session(recipe, LaunchConfig(layout=Layout((2,))), here)
    with pytest.raises(InputError, match=r"the stages need 1 \+ 3 = 4"):
        worker_session(recipe, LaunchConfig(layout=Layout((1, 3))), here)


@pytest.mark.slow
def test_ranks_that_another_launcher_started_train_together(free_port):
    command = [sys.executable, "-m", "berth", "train", "ctrdnn-8", "--steps", "4", "--batch", "64", "--json"]
    command += ["--servers", "2"]
    with forking():
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **RankInfo(rank, 2, "127.0.0.1", free_port).environment()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
    said = [process.communicate(timeout=600) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    reported = json.loads(said[0][0])
    assert reported["step"] == 4
    assert len(reported["servers"]) == len(reported["workers"]) == 2
    assert said[1][0] == ""


def torchrun_program() -> list[str]:
    """Torchrun, forked from a process that has imported torch."""
    return [str(programs() / "python"), str(Path(sys.executable).with_name("torchrun"))]


@pytest.mark.slow
def test_torchrun_starts_workers_that_train_together(free_port):
    command = [
        *torchrun_program(),
        "--nproc-per-node",
        "2",
        "--no-python",
        str(programs() / "berth"),
        "train",
        "ctrdnn-8",
        "--servers",
        "1",
        "--steps",
        "4",
        "--batch",
        "64",
        "--json",
    ]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port)}
    done = subprocess.run(command, capture_output=True, text=True, env=alone, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert (reported["step"], len(reported["workers"]), len(reported["servers"])) == (4, 2, 1)


def torchrun(port: int, *command: str) -> dict:
    """Run a command under torchrun with the options of the training guide, for one host; returns what it printed."""
    launch = ["--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-backend", "c10d"]
    launch += [
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
        "--rdzv-conf",
        "is_host=1",
        "--local-addr",
        "127.0.0.1",
    ]
    done = subprocess.run(
        [*torchrun_program(), *launch, "--no-python", str(programs() / "python"), *command],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict = json.loads(done.stdout)
    return found


TWO_FITS = """
import json, os, sys
import berth.train as bt

losses = []
for _ in range(2):
    checkpoints = bt.Checkpoints(sys.argv[1], fresh=True)
    losses.append(bt.Trainer("ctrdnn-8", batch=64, servers=1, checkpoints=checkpoints).fit(steps=3).losses)
if os.environ["RANK"] == "0":
    print(json.dumps({"losses": losses}))
"""


@pytest.mark.slow
def test_every_fit_of_a_script_under_torchrun_begins_afresh(tmp_path, free_port):
    (tmp_path / "script.py").write_text(TWO_FITS)
    first, second = torchrun(free_port, str(tmp_path / "script.py"), str(tmp_path / "run"))["losses"]
    assert len(first) == 3
    assert second == first


LOSES_A_RANK = """
import os, runpy, sys

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if sys.argv.pop(1) == "lost" and (os.environ["RANK"], attempt) == ("1", "0"):
    sys.exit(1)
sys.argv[0] = "berth"
runpy.run_module("berth", run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_of_torchrun_that_is_lost_at_its_start_does_not_resume_another(tmp_path, free_port):
    """Neither has an id, so torchrun calls both "none"."""
    (tmp_path / "script.py").write_text(LOSES_A_RANK)
    words = ["train", "ctrdnn-8", "--batch", "64", "--servers", "1", "--steps", "3", "--json", "--fresh"]
    for how in ("whole", "lost"):
        command = (str(tmp_path / "script.py"), how, *words, "--checkpoint", str(tmp_path / "run"))
        assert torchrun(free_port, *command)["resumed_from"] is None
