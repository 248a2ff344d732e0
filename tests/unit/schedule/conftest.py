"""Ways to run a policy from a file."""

from __future__ import annotations

import sys

import pytest
from policy_files import ROWS, TRACE, marked

from berth.cli.main import main
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs

SIMULATE = ("simulate", "jobs.csv", "--cluster", "1x1x8:V100-16", "--network", "off", "--policy")


@pytest.fixture
def write(monkeypatch, tmp_path):
    (tmp_path / "jobs.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)

    def written(source):
        text, line = marked(source)
        (tmp_path / "mine.py").write_text(text)
        return line

    return written


@pytest.fixture
def berth(monkeypatch, capfd):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["berth", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        captured = capfd.readouterr()
        return done.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def refused(write, berth):
    """Checks that a policy is refused in the same words on the command line and from Python."""

    def check(source, *words, verb=SIMULATE):
        line = write(source)
        words = (*words, f"mine.py:{line}") if line else words
        code, out, error = berth(*verb, "mine.py:Mine")
        assert (code, out) == (2, ""), error
        assert "Traceback" not in error
        assert "Exception ignored" not in error
        assert all(word in error for word in words), error
        with pytest.raises(Exception) as caught:  # noqa: PT011 - a policy's own exceptions stay what they are
            simulate(jobs(ROWS), cluster([8]), load_policy("mine.py:Mine"), Setting(network="off"))
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert all(word in text or word == type(caught.value).__name__ for word in words), text

    return check
