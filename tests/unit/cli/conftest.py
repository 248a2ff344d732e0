"""The command line in this process, as `berth` starts it."""

from __future__ import annotations

import sys

import pytest

from berth.cli.main import main


@pytest.fixture
def berth(monkeypatch, capsys, tmp_path):
    """Runs a command in an empty folder, where no controller is: its exit code, output and messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTH_STATE", str(tmp_path / "state"))
    for name in ("BERTH_URL", "BERTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["berth", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        reported = capsys.readouterr()
        return left.value.code, reported.out, reported.err

    return run
