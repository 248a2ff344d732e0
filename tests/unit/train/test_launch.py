"""The launcher with small programs for workers: who ended how, who goes on, and what is said of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from berth.errors import InputError
from berth.train.launch import INTERRUPTED, LOST_ANOTHER, SERVERS, Launcher, Lineup, addresses_from, launch

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
    return Launcher(command, Lineup(workers, 0, **options), lines.append).run(), lines


def test_all_end_well_and_nothing_is_said():
    assert run("assert os.environ['WORLD_SIZE'] == '2'") == (0, [])


def test_without_a_checkpoint_a_loss_is_the_end():
    code, said = run("die() if rank == 1 else wait()")
    assert code == 1
    assert said == ["worker 1 was killed (SIGKILL); without --checkpoint there is nothing to go on from"]


def test_with_one_all_are_started_again():
    code, said = run("if attempt == 1: die() if rank == 1 else wait()", resumes=True)
    assert code == 0
    assert said == ["worker 1 was killed (SIGKILL): all go on from the last checkpoint"]


def test_but_not_for_ever():
    code, said = run("sys.exit('out of luck' if rank == 1 else 0)", resumes=True, restarts=1)
    assert code == 1
    assert said == [
        "worker 1 ended with exit code 1 (out of luck): all go on from the last checkpoint",
        "worker 1 ended with exit code 1 (out of luck); 1 restarts were not enough",
    ]


def test_who_lost_another_is_not_to_blame():
    code, said = run(f"sys.exit({LOST_ANOTHER}) if rank == 0 else (time.sleep(0.1), sys.exit(3))")
    assert code == 3
    assert said[0].startswith("worker 1 ended with exit code 3")
    code, said = run(f"sys.exit({LOST_ANOTHER}) if rank == 0 else wait()")
    assert said[0].startswith("worker 0 lost another process")


def test_what_a_user_did_wrong_is_said_once_and_not_tried_again():
    code, said = run("if rank == 1: print('bad option'); sys.exit(2)\nwait()", resumes=True)
    assert (code, said) == (2, ["bad option"])
    code, said = run("sys.exit(2) if rank == 0 else wait()", resumes=True)  # it has said so itself
    assert (code, said) == (2, [])


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_asks_the_workers_and_waits_for_them(tmp_path, monkeypatch, number, ctrl_c):
    monkeypatch.setenv("READY", f"{tmp_path}/ready")
    before = signal.getsignal(number)
    stop_when_ready(tmp_path, number)
    code, said = run(HEARS, resumes=False)
    assert code == (INTERRUPTED if number == signal.SIGINT else 0)
    assert said == (["stopped; without --checkpoint nothing is saved"] if number == signal.SIGINT else [])
    assert signal.getsignal(number) is before


def test_workers_that_do_not_end_within_the_grace_are_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("READY", f"{tmp_path}/ready")
    stop_when_ready(tmp_path, signal.SIGTERM)
    code, said = run(HEARS.replace("sys.exit(0)", "pass"), resumes=True, grace_s=0.1)
    assert code == 1
    assert said == ["stopped: no checkpoint within the 0.1 s of grace: workers"]


def test_a_worker_killed_while_it_was_asked_to_stop_is_not_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("READY", f"{tmp_path}/ready")
    stop_when_ready(tmp_path, signal.SIGTERM)
    code, said = run(HEARS.replace("sys.exit(0)", "die()"), resumes=True)
    assert code == 1
    assert said[0].startswith("stopped: worker ")
    assert said[0].endswith("was killed (SIGKILL)")


def test_nothing_of_its_children_is_left():
    launcher = Launcher(
        [sys.executable, "-c", HEAD + "die() if rank else wait()"], Lineup(2, 0), lambda text: None
    )
    assert launcher.run() == 1
    assert (launcher.workers, launcher.servers) == ([], [])
    assert not Path(launcher._logs.name).exists()


@pytest.mark.slow
def test_a_server_that_ends_is_a_loss_too(monkeypatch):
    said = []
    launcher = Launcher([sys.executable, "-c", HEAD + "wait()"], Lineup(1, 1), said.append)
    start = launcher._start

    def started():
        start()
        launcher.servers[0].process.terminate()

    monkeypatch.setattr(launcher, "_start", started)
    assert launcher.run() == 1
    assert said[0].startswith("server 0 ended with exit code 1; without --checkpoint")


def test_addresses_come_from_the_environment():
    told = '[{"host": "h", "port": 7, "local": ""}]'
    assert [str(address) for address in addresses_from({SERVERS: told})] == ["h:7"]
    assert addresses_from({}) == []
    with pytest.raises(InputError, match="is no list of addresses"):
        addresses_from({SERVERS: "{"})


def test_a_program_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="a process could not be started: No such file"):
        launch([], Lineup(1, 0), lambda text: None)
