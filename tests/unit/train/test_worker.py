"""Processes that nobody of berth's launched find each other, and nobody else finds them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.train.launch_config import LaunchConfig
from berth.train.recipes import make_recipe
from berth.train.rendezvous import RankInfo
from berth.train.servers import Secret
from berth.train.servers.secret import VARIABLE
from berth.train.stages.cut import Layout
from berth.train.run_secret import secret_file, shared_secret
from berth.train.worker import worker_session


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_secret_in_a_file_is_for_its_owner_alone_and_goes_away():
    secret = Secret.random()
    with secret_file(secret) as path:
        assert Path(path).stat().st_mode & 0o077 == 0
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        assert Secret.find(path).environment() == secret.environment()
    assert not Path(path).exists()


def test_a_published_path_counts_only_if_the_file_is_private(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    known, link = tmp_path / "known", tmp_path / "link"
    known.write_text("what everybody on this machine can read")
    link.symlink_to(known)
    for path in (known, link, tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=r"not a private file|can't be read"):
            shared_secret(str(path))
    known.chmod(0o600)
    assert shared_secret(str(known)).environment() == Secret.find(known).environment()


def test_the_secret_of_the_environment_goes_before_a_published_path(monkeypatch, tmp_path):
    secret, other = Secret.random(), tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("0123456789abcdef0123456789abcdef")
    monkeypatch.setenv(VARIABLE, secret.environment()[VARIABLE])
    assert shared_secret(str(other)).environment() == secret.environment()


def test_on_several_machines_a_secret_must_be_given(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match="need a shared secret"):
        worker_session(make_recipe("nce", batch=8), LaunchConfig(servers=1), RankInfo(0, 1, "10.1.2.3", 0))


def test_as_many_processes_as_the_division_needs_are_wanted():
    recipe, here = make_recipe("nce", batch=8), RankInfo(0, 3, "127.0.0.1", 1)
    with pytest.raises(InputError, match=r"3 processes were started, but the stages need 2$"):
        worker_session(recipe, LaunchConfig(layout=Layout((2,))), here)
    with pytest.raises(InputError, match=r"the stages need 1 \+ 3 = 4"):
        worker_session(recipe, LaunchConfig(layout=Layout((1, 3))), here)


@pytest.mark.slow
def test_ranks_that_another_launcher_started_train_together():
    port = free_port()
    command = [sys.executable, "-m", "berth", "train", "ctrdnn-8", "--steps", "4", "--batch", "64", "--json"]
    command += ["--servers", "2"]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **RankInfo(rank, 2, "127.0.0.1", port).environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    told = json.loads(said[0][0])
    assert told["step"] == 4
    assert len(told["servers"]) == len(told["workers"]) == 2
    assert said[1][0] == ""


@pytest.mark.slow
def test_torchrun_starts_workers_that_train_together():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "berth", "train"]
    command += ["ctrdnn-8", "--servers", "1", "--steps", "4", "--batch", "64", "--json"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(command, capture_output=True, text=True, env=alone, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["step"], len(told["workers"]), len(told["servers"])) == (4, 2, 1)
