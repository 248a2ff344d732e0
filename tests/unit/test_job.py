"""What a job's code reports to berth: how long its steps took, and that it is done."""

from __future__ import annotations

import json

import pytest

from berth import job


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTH_FOLDER", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    """Moves by what a step is said to take."""
    now = [100.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: now[0])

    def take(seconds: float) -> None:
        now[0] += seconds

    return take


def reported(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_the_first_step_warms_up_and_the_others_are_reported_by_their_mean(folder, clock):
    for seconds in job.steps([9.0, 2.0, 4.0, 1.0, 1.5], every_s=5.0):
        clock(seconds)
    assert reported(folder) == [{"count": 2, "seconds": 3.0}, {"count": 2, "seconds": 1.25}]


@pytest.mark.parametrize("work", [[], [3.0]], ids=["nothing", "one step"])
def test_what_only_warms_up_is_not_reported(folder, clock, work):
    for seconds in job.steps(work):
        clock(seconds)
    assert not (folder / "steps.jsonl").exists()


def test_only_the_first_process_of_a_gang_reports(folder, clock, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert list(job.steps(range(5), every_s=0.0)) == [0, 1, 2, 3, 4]
    assert list(folder.iterdir()) == []


def test_outside_of_berth_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.delenv("BERTH_FOLDER", raising=False)
    monkeypatch.chdir(tmp_path)
    assert list(job.steps("abc", every_s=0.0)) == ["a", "b", "c"]
    job.report(3, 1.0)
    job.finished()
    assert list(tmp_path.iterdir()) == []


def test_a_job_says_that_it_is_done(folder):
    job.finished()
    job.finished()
    assert (folder / "done").exists()
