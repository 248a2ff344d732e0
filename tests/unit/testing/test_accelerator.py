"""The stand-in accelerator, in a process of its own: torch has to know it before the first backward pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from preloaded import forking

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


VENDOR = """
def start():
    from berth.testing import accelerator
    accelerator.NAME = "vendor"
    accelerator.register()
"""


@pytest.fixture
def vendor(tmp_path):
    """An installed package that has a device, which torch finds by its entry point: the stand-in by another name."""
    (tmp_path / "vendor.py").write_text(VENDOR)
    facts = tmp_path / "vendor-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\nvendor = vendor:start\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "BERTH_MATMUL": "torch"}


@pytest.mark.slow
def test_a_device_of_an_entry_point_of_torch_trains_as_any_vendors(vendor):
    def train(device):
        options = f"train ctrdnn-8 --batch 64 --steps 4 --workers 2 --servers 1 --json --device {device}"
        command = [sys.executable, "-m", "berth", *options.split()]
        return subprocess.run(command, env=vendor, capture_output=True, text=True, timeout=300, check=False)

    with forking():  # these have imported torch without the package, as they may: they run on the CPU
        expected = json.loads(train("cpu").stdout)
    found = json.loads(train("vendor").stdout)
    assert [one["device"] for one in found["workers"]] == ["vendor", "vendor"]
    assert (found["step"], found["loss"]) == (4, expected["loss"])
    refused = train("vendors")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: --device vendors: there is no such device here\n  here: cpu, vendor\n"
