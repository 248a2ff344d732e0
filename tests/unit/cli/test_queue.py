"""Rows of `berth queue`."""

from __future__ import annotations

import pytest

from berth.cli.queue import _reasons


def waiting(job: str, sentence: str, blocker: str = "") -> dict[str, object]:
    return {"id": job, "blocker": blocker, "reason": {"sentence": sentence}}


def test_a_reason_is_written_once_for_jobs_that_follow_each_other():
    rows = [
        waiting("a", "x", "needs 4"),
        waiting("b", "x", "needs 4"),
        waiting("c", "x", "needs 4"),
        waiting("d", "paused"),
        waiting("e", "x", "needs 4"),
    ]
    assert _reasons(rows) == ["needs 4", "as a", "as a", "paused", "needs 4"]


@pytest.mark.parametrize(
    ("blocker", "shown"),
    [
        (
            "needs 8 devices; 2 are free; starts in 3h58m when llm ends",
            "needs 8 devices; 2 are free; starts when llm ends",
        ),
        (
            "needs 8 devices; starts now in place of a; paused",
            "needs 8 devices; starts in place of a; paused",
        ),
        ("needs 8 devices; starts in 4m; will be overtaken by b", "needs 8 devices; will be overtaken by b"),
        ("needs 8 devices; starts in 4m", "needs 8 devices"),
    ],
)
def test_the_time_of_the_start_is_in_its_column_only(blocker, shown):
    assert _reasons([waiting("a", "x", blocker)]) == [shown]
