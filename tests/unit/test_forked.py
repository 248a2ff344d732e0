"""Forked processes are those that `subprocess` would have started: children with what they were given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from forked import Origin
from preloaded import forking, programs

pytestmark = pytest.mark.slow

# Says who it is, starts another one as a worker of a training is started, and ends by a signal.
SHOW = """
import json, os, signal, subprocess, sys

def facts():
    return {
        "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgrp(), "folder": os.getcwd(), "words": sys.argv[1:],
        "variable": os.environ.get("OF_TEST"), "torch": "torch" in sys.modules, "umask": os.umask(0o077),
        "given": [os.read(int(one), 9).decode() for one in os.environ.get("OPEN", "").split()],
    }

def make_model():
    print(json.dumps(facts()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def show(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    return tmp_path


def test_a_forked_process_is_a_child_with_the_descriptors_group_and_folder_of_subprocess(show):
    read, write = os.pipe()
    os.write(write, b"for it")
    with forking(), subprocess.Popen(
        [sys.executable, "-m", "berth", "train", "show.py:make_model", "--steps", "1"],
        cwd=show, env=os.environ | {"OF_TEST": "yes", "OPEN": str(read)}, stdout=subprocess.PIPE, pass_fds=(read,),
        process_group=0, text=True,
    ) as process:  # fmt: skip
        found = json.loads(process.stdout.readline())
    os.close(read), os.close(write)
    assert process.returncode == -signal.SIGKILL
    assert (found["pid"], found["parent"], found["group"]) == (process.pid, os.getpid(), process.pid)
    assert (found["folder"], found["variable"]) == (str(show), "yes")
    assert found["given"] == ["for it"]
    assert found["words"] == ["train", "show.py:make_model", "--steps", "1"]
    assert found["torch"]


def test_exit_codes_output_and_errors_come_back():
    with forking():
        done = subprocess.run(
            [sys.executable, "-m", "berth", "profile", "ctrdn"], capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'ctrdnn'" in done.stderr
    done = subprocess.run([programs() / "berth", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0


def test_what_imported_modules_have_read_is_not_taken_over(monkeypatch):
    """Such a process is started as ever."""
    monkeypatch.setattr(Origin, "_fork", lambda *_: pytest.fail("it was forked"))
    command = [sys.executable, "-m", "berth", "cluster", "devices"]
    environment = os.environ | {"NUMBA_OPT": "0"}
    with forking():
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["PYTHONBREAKPOINT", "TORCHINDUCTOR_CACHE_DIR"])
def test_variables_that_libraries_set_while_they_run_keep_no_process_from_being_forked(monkeypatch, name):
    monkeypatch.setattr("forked._execute", lambda *_: pytest.fail("it was not forked"))
    command = [sys.executable, "-m", "berth", "cluster", "devices"]
    with forking():
        done = subprocess.run(command, env=os.environ | {name: "0"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_processes_that_multiprocessing_spawns_are_forked_with_the_signals_that_are_blocked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with forking(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            assert pool.submit(os.getppid).result() == os.getpid()
            assert pool.submit(eval, "'torch' in __import__('sys').modules").result()
            assert signal.SIGUSR1 in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
