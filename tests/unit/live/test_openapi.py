"""The API and its description agree: generated requests, alone and in a row, on every route, under all checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
CONFIG = Path(__file__).with_name("schemathesis.toml")
HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
PHASES = "examples,coverage,fuzzing,stateful"


@pytest.mark.parametrize(
    ("examples", "sequences"), [(4, 50), pytest.param(100, 500, marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_generated_requests_agree_with_the_openapi_description(served, tmp_path, examples, sequences):
    config = tmp_path / "schemathesis.toml"
    config.write_text(
        CONFIG.read_text().replace("EXAMPLES", str(examples)).replace("SEQUENCES", str(sequences))
    )
    schemathesis = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    options = ["--checks", "all", "--phases", PHASES, "--exclude-path", "/api/v1/events"]
    token = ["-H", f"Authorization: Bearer {served.tcp.token}"]
    done = subprocess.run(
        [*schemathesis, f"{served.tcp.url}/openapi.json", *options, *token],
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 27" in done.stdout  # all routes but the endless stream
    assert "9 covered / 9 selected" in done.stdout  # links
