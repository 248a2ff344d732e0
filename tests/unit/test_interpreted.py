"""`make coverage` and `make mutants` run tests with berth's compiled code as plain Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_simulation_runs_interpreted():
    places = "tests/unit/schedule/test_places.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "interpreted", "-p", "no:cacheprovider", places]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
