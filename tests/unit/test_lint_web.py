"""`make lint-web` without Node, without the compiler, and with both: skips are failures where BERTH_NO_SKIPS is set."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_NODE, NO_COMPILER = "there is no Node (npx)", "npx can't download the TypeScript compiler"


def lint_web(folder: Path, npx: str | None, no_skips: str) -> subprocess.CompletedProcess[str]:
    """Run it where `npx` is this script, or none."""
    make, sed = shutil.which("make"), shutil.which("sed")
    if not make or not sed:
        pytest.skip("there is no make")
    (folder / "sed").symlink_to(sed)  # the Makefile uses it
    if npx is not None:
        (folder / "npx").write_text(f"#!/bin/sh\n{npx}\n")
        (folder / "npx").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment |= {"PATH": str(folder), "BERTH_NO_SKIPS": no_skips}
    return subprocess.run(
        [make, "--no-print-directory", "lint-web"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("npx", "why"), [(None, NO_NODE), ("exit 1", NO_COMPILER)])
def test_what_is_missing_is_named_and_is_a_failure_where_nothing_may_be_skipped(npx, why, tmp_path):
    for name, no_skips, code in (("may", "", 0), ("must", "1", 2)):
        folder = tmp_path / name
        folder.mkdir()
        done = lint_web(folder, npx, no_skips)
        assert (done.returncode, why in done.stdout + done.stderr) == (code, True)


@pytest.mark.parametrize("no_skips", ["", "1"])
@pytest.mark.parametrize(
    ("npx", "code"), [("exit 0", 0), ('case "$*" in *--version) exit 0;; *) exit 3;; esac', 2)]
)
def test_the_result_is_that_of_the_compiler(npx, code, no_skips, tmp_path):
    done = lint_web(tmp_path, npx, no_skips)
    assert done.returncode == code
    assert "skipped" not in done.stdout + done.stderr
