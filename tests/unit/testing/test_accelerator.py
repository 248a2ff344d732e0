"""The stand-in accelerator, in a process of its own: torch has to know it before the first backward pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LATE = """
import torch
torch.ones((), requires_grad=True).backward()
from berth.errors import InputError
from berth.testing.accelerator import register
try:
    register()
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["standin_cases.py"])
def test_every_case_passes_in_a_process_of_its_own(cases):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", str(HERE / cases)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


@pytest.mark.slow
def test_a_device_that_comes_too_late_is_refused():
    ended = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    assert "must be registered before the first backward pass" in ended.stdout


WAITS = """
import hashlib, threading, time
from berth.testing.accelerator import wait_for_threads
data = bytes(1 << 30)
thread = threading.Thread(target=lambda: hashlib.sha256(data).digest(), daemon=True)
thread.start()
wait_for_threads(60)
thread.join(0.1)
print("ended" if not thread.is_alive() else "runs")
"""


@pytest.mark.slow
def test_at_exit_the_process_waits_for_threads_that_run():
    ended = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "ended"
