"""The API and its description agree: generated requests, right and wrong, against every route, under all checks."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = 10  # for each route


def test_no_request_whatever_contradicts_the_description(served, tmp_path):
    url, token = served.tcp.url, served.tcp.token
    config = Path(__file__).with_name("schemathesis.toml")
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(config),
        "run",
        f"{url}/openapi.json",
    ]
    options = [
        "--request-timeout",
        "120",  # a batch of ten thousand jobs, on a busy machine
        "--checks",
        "all",
        "--max-examples",
        str(EXAMPLES),
        "--seed",
        "1",
        "--exclude-path",
        "/api/v1/events",
    ]
    done = subprocess.run(
        [*command, *options, "-H", f"Authorization: Bearer {token}", "--phases", "examples,coverage,fuzzing"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 25" in done.stdout  # all routes but the endless stream
