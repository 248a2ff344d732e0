"""The launcher with small programs as workers: exit codes, restarts, and what is printed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.train.launch import (
    INTERRUPTED,
    PEER_LOST,
    SERVERS,
    Launcher,
    launch,
    server_addresses,
)
from berth.train.launch_config import LaunchConfig
from berth.train.options import TrainOptions
from berth.train.stages.cut import Layout

HEAD = """
import os, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["BERTH_TRAIN_ATTEMPT"])
def die(): os.kill(os.getpid(), signal.SIGKILL)
def wait():
    while True: time.sleep(0.01)
"""


def run(body, said=None, *, workers=2, **options):
    command = [sys.executable, "-c", HEAD + body]
    lines = [] if said is None else said
    return Launcher(command, config(workers, **options), lines.append).run(), lines


def config(workers, servers=0, *, resumable=False, **options):
    options = TrainOptions(checkpoints="run" if resumable else None, **options)
    return LaunchConfig(options, Layout((workers,)), servers=servers)


@pytest.mark.slow
def test_all_end_well_and_nothing_is_said(monkeypatch):
    # torchrun started the launcher, not these workers
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    here = "assert os.environ['WORLD_SIZE'] == '2' and 'TORCHELASTIC_USE_AGENT_STORE' not in os.environ"
    assert run(here) == (0, [])


def test_without_a_checkpoint_a_loss_is_the_end():
    code, said = run("die() if rank == 1 else wait()")
    assert code == 1
    assert said == ["worker 1 was killed (SIGKILL); can't resume without --checkpoint"]


@pytest.mark.slow
def test_with_a_checkpoint_all_processes_are_restarted():
    code, said = run("if attempt == 1: die() if rank == 1 else wait()", resumable=True)
    assert code == 0
    assert said == ["worker 1 was killed (SIGKILL): restarting all from the last checkpoint"]


@pytest.mark.slow
def test_restarts_are_limited():
    code, said = run("sys.exit('out of luck' if rank == 1 else 0)", resumable=True, max_restarts=1)
    assert code == 1
    assert said == [
        "worker 1 ended with exit code 1 (out of luck): restarting all from the last checkpoint",
        "worker 1 ended with exit code 1 (out of luck); gave up after 1 restart",
    ]


@pytest.mark.slow
def test_a_process_that_lost_a_peer_is_not_the_cause(monkeypatch):
    code, said = run(f"sys.exit({PEER_LOST}) if rank == 0 else (time.sleep(0.1), sys.exit(3))")
    assert code == 3
    assert said[0].startswith("worker 1 ended with exit code 3")
    monkeypatch.setattr("berth.train.launch._CAUSE_S", 0.1)
    code, said = run(f"sys.exit({PEER_LOST}) if rank == 0 else wait()")
    assert said[0].startswith("worker 0 lost another process")


@pytest.mark.slow
def test_what_a_user_did_wrong_is_said_once_and_not_tried_again():
    code, said = run("if rank == 1: print('bad option'); sys.exit(2)\nwait()", resumable=True)
    assert (code, said) == (2, ["bad option"])
    code, said = run("sys.exit(2) if rank == 0 else wait()", resumable=True)  # it has said so itself
    assert (code, said) == (2, [])
    told = "if rank == 1: print('reading\\nerror: a.tsv:1: is empty\\n  check the path'); sys.exit(2)\nwait()"
    assert run(told) == (2, ["error: a.tsv:1: is empty\n  check the path"])
    assert run("if rank == 1: sys.exit(2)\nwait()") == (2, ["worker 1 ended with exit code 2"])


HEARS = """
def hear(*_): sys.exit(0)
signal.signal(signal.SIGTERM, hear)
open(os.environ["READY"] + str(rank), "w").close()
wait()
"""


def stop_when_ready(folder: Path, number: int, workers: int = 2):
    def watch():
        while len(list(folder.iterdir())) < workers:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_asks_the_workers_and_waits_for_them(tmp_path, monkeypatch, number, ctrl_c):
    monkeypatch.setenv("READY", f"{tmp_path}/ready")
    before = signal.getsignal(number)
    stop_when_ready(tmp_path, number)
    code, said = run(HEARS, resumable=False)
    assert code == (INTERRUPTED if number == signal.SIGINT else 0)
    assert said == (["stopped; nothing is saved without --checkpoint"] if number == signal.SIGINT else [])
    assert signal.getsignal(number) is before


def test_workers_that_do_not_end_within_the_grace_are_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("READY", f"{tmp_path}/ready")
    stop_when_ready(tmp_path, signal.SIGTERM)
    code, said = run(HEARS.replace("sys.exit(0)", "pass"), resumable=True, grace_s=0.1)
    assert code == 1
    assert said == ["stopped: workers saved no checkpoint within the grace period of 0.1 s"]


@pytest.mark.slow
def test_a_worker_killed_while_it_was_asked_to_stop_is_not_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("READY", f"{tmp_path}/ready")
    stop_when_ready(tmp_path, signal.SIGTERM)
    code, said = run(HEARS.replace("sys.exit(0)", "die()"), resumable=True)
    assert code == 1
    assert said[0].startswith("stopped: worker ")
    assert said[0].endswith("was killed (SIGKILL)")


def test_nothing_of_its_children_is_left():
    launcher = Launcher(
        [sys.executable, "-c", HEAD + "die() if rank else wait()"], config(2), lambda text: None
    )
    assert launcher.run() == 1
    assert (launcher.workers, launcher.servers) == ([], [])
    assert not Path(launcher._logs.name).exists()


@pytest.mark.slow
def test_a_server_that_ends_is_a_loss_too(monkeypatch):
    said = []
    launcher = Launcher([sys.executable, "-c", HEAD + "wait()"], config(1, 1), said.append)
    start = launcher._start

    def started():
        start()
        launcher.servers[0].process.terminate()

    monkeypatch.setattr(launcher, "_start", started)
    assert launcher.run() == 1
    assert said[0].startswith("server 0 ended with exit code 1; can't resume without")


def test_addresses_come_from_the_environment():
    addresses = '[{"host": "h", "port": 7, "local": ""}]'
    assert [str(address) for address in server_addresses({SERVERS: addresses})] == ["h:7"]
    assert server_addresses({}) == []
    with pytest.raises(InputError, match="is not a list of addresses"):
        server_addresses({SERVERS: "{"})


def test_a_program_that_is_not_there_is_said():
    with pytest.raises(InputError, match="a process could not be started: No such file"):
        launch(["/nowhere/python"], config(1), lambda text: None)
