"""Ctrl-C while compiled code runs interrupts its caller."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys

import pytest

from berth.native.interrupts import _CALLBACKS, interrupt_safely

IN_A_KERNEL = """
import os, subprocess, time
import numba, numpy as np
from berth.native.interrupts import interrupt_safely

@numba.njit
def work(count):
    total = np.zeros(1)
    for number in range(count):
        total[0] += np.sin(number)
    return total

work(1)
interrupt_safely()
subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -INT {os.getpid()}"])
try:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        work(20_000_000)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def handler(ctrl_c):
    before = sys.gettrace()
    interrupt_safely()
    yield
    sys.settrace(before)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def callback(module, name, body):
    """A function with the name of a callback."""
    space = {"__name__": module, "body": body}
    exec(f"def {name}():\n    body()\n    return 1", space)
    return space[name]


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize(("module", "name"), sorted(_CALLBACKS))
def test_a_callback_of_compiled_code_returns_before_its_caller_is_interrupted(module, name):
    owner = importlib.import_module(module)
    assert hasattr(getattr(owner, "ExecutionEngine", owner), name), "it has another name now"
    returned = []

    def caller():
        returned.append(callback(module, name, lambda: signal.raise_signal(signal.SIGINT))())
        returned.append("next line")

    with pytest.raises(KeyboardInterrupt):
        caller()
    assert returned == [1]


@pytest.mark.usefixtures("handler")
def test_other_code_is_interrupted_at_once():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_ctrl_c_stays_ignored(ctrl_c):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupt_safely()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.slow
def test_a_kernel_that_returns_an_array_is_interrupted(ctrl_c):
    run = subprocess.run([sys.executable, "-c", IN_A_KERNEL], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "interrupted\n"), run.stderr
