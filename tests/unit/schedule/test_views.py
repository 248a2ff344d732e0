"""The types for editors and mypy list exactly what a policy can read, and a policy in a user's file passes mypy."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from berth.schedule.records import CLUSTER, POLICY_FIELDS, WAIT_STATS
from berth.schedule.views import ClusterView, JobView, WaitStatsView

ROOT = Path(__file__).parents[3]
FIELDS = [(JobView, POLICY_FIELDS), (ClusterView, CLUSTER.names), (WaitStatsView, WAIT_STATS.names)]


@pytest.mark.parametrize(("view", "names"), FIELDS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_view_lists_the_fields_that_a_policy_can_read(view, names):
    assert set(inspect.get_annotations(view)) == set(names)


@pytest.mark.parametrize(("view", "names"), FIELDS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_field_of_a_view_has_a_description(view, names):
    source = inspect.getsource(view)
    for name, kind in inspect.get_annotations(view).items():
        assert f'    {name}: {kind}\n    """' in source


MISTAKES = """
from __future__ import annotations
from dataclasses import dataclass
from berth.schedule import ClusterView, JobView, Policy, PreemptByOrder, Rules

@dataclass(frozen=True)
class Wrong(Policy):
    weight: float = 1.0

    def rules(self) -> Rules:
        return Rules(preempt=PreemptByOrder(margin=1.0))

    @staticmethod
    def order(job: JobView, now: float, params: Wrong, cluster: ClusterView) -> float:
        return job.gpuz + params.wieght + cluster.user_gpu
"""


@pytest.mark.slow
def test_mypy_accepts_the_examples_and_finds_mistakes_in_a_policy(tmp_path):
    (tmp_path / "wrong.py").write_text(MISTAKES)
    files = [f"examples/{name}" for name in ("mine.py", "fair_share.py", "drf.py")]
    # With berth's own settings, so that what `make lint` found is read; what they allow is in berth's modules alone.
    if (known := ROOT / ".mypy_cache").is_dir():  # from `make lint`, with paths relative to this folder
        shutil.copytree(known, tmp_path / "cache")
    options = ["--strict", "--cache-dir", str(tmp_path / "cache"), "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, *files, str(tmp_path / "wrong.py")]
    environment = {"MYPYPATH": "src", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    found = [line for line in done.stdout.splitlines() if "examples/" in line or "wrong.py" in line]
    assert all("wrong.py" in line for line in found), done.stdout
    for words in (
        '"margin" for "PreemptByOrder"',
        'no attribute "gpuz"',
        'no attribute "wieght"',
        "user_gpu",
    ):
        assert any(words in line for line in found), (words, done.stdout, done.stderr)
