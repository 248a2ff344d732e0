"""Rows of `berth queue`."""

from __future__ import annotations

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
