"""Rows of `berth queue`."""

from __future__ import annotations

import pytest

from berth.cli.queue import _reasons, _running, _size_columns, _waiting
from berth.cli.why import _head, _print_alternatives


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


def running(job: str, **size: int) -> dict[str, object]:
    facts = {"name": job, "user": "ada", "state": "running", "priority": 0, "expected_end": None}
    return {"id": job, **facts, **size}


def test_cores_have_their_own_column_where_some_job_asks_for_them():
    both, plain = running("a", gpus=4, cores=8), running("b", gpus=2)
    assert _size_columns([plain]) == ["gpus"]
    assert _size_columns([plain, both]) == ["gpus", "cores"]
    assert _running(both, 0.0, cores=True)[4:6] == ["4", "8"]
    assert _running(plain, 0.0, cores=True)[4:6] == ["2", "0"]
    assert _running(plain, 0.0, cores=False)[4:6] == ["2", "0"]  # the second is its priority


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ({"gpus": 4, "cores": 8}, "4 GPUs and 8 cores"),
        ({"gpus": 0, "cores": 1}, "1 core"),
        ({"gpus": 1, "cores": 0}, "1 GPU"),
        ({"gpus": 12}, "12 devices"),
    ],
)
def test_the_size_of_a_job_counts_gpus_and_cores_apart(size, text):
    answer = {"job": "a", "state": "queued", "position": 1, "priority": 0, **size}
    answer["reason"] = {"code": "behind", "sentence": "it waits"}
    assert _head(answer) == f"a is queued, number 1 in the queue at priority 0, {text}: it waits."


def alternative(name: str, usd_per_hour: float | None, usd: float | None) -> dict[str, object]:
    facts = {"devices": "4 T4", "run_s": 7200.0, "fits_now": None, "run_now_s": None}
    return {"name": name, **facts, "usd_per_hour": usd_per_hour, "usd": usd}


def test_the_table_of_alternatives_has_the_dollars_of_the_rest_where_devices_have_prices(capsys):
    _print_alternatives([alternative("a", 1.5, 3.0), alternative("b", None, None)])
    out = capsys.readouterr().out
    assert out.split("\n")[1].split()[-2:] == ["price", "costs"]
    assert "$1.50/h" in out
    assert "$3.00" in out
    _print_alternatives([alternative("b", None, None)])
    assert "costs" not in capsys.readouterr().out


def test_a_start_that_depends_on_an_overdue_job_is_not_promised():
    row = running("a", gpus=4) | {
        "position": 1,
        "since": 0.0,
        "expected_start": 150.0,
        "start_overdue_s": 600.0,
    }
    assert _waiting(row, 100.0, cores=False)[-1] == "10m overdue"
    assert _waiting(row | {"start_overdue_s": None}, 100.0, cores=False)[-1] != "10m overdue"
