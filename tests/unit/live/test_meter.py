"""Step times that jobs tell, in a file of their own or in their log."""

import json

import pytest

from berth.live.folder import Folder
from berth.live.history import Setups, history
from berth.live.meter import _MOST, Meter

PATTERN = "took (?P<seconds>[0-9.]+) s|(?P<per_second>[0-9.]+) it/s"
ENDLESS = "(?P<seconds>([0-9]+)+)x"  # tries every way to cut a number into pieces


@pytest.fixture
def measured(crank, tmp_path, request):
    """A running job, and the meter that reads its folder."""
    live = crank()
    live.job = live.submit(gpus=2, seconds=10_000, step_pattern=getattr(request, "param", PATTERN))
    live.step(1, times=2)
    live.attempt = Folder(tmp_path, live.state.jobs[live.job].token).path
    live.attempt.mkdir(parents=True)
    live.meter = Meter(live.controller, tmp_path)
    return live


def report(live, count, seconds):
    with (live.attempt / "steps.jsonl").open("a") as file:
        file.write(json.dumps({"count": count, "seconds": seconds}) + "\n")


def reported(live):
    live.meter.read()
    live.step()
    return history(live.job, live.controller.store, Setups(live.controller.store))


def test_reported_steps_are_learned_once_there_are_enough(measured):
    report(measured, 9, 0.5)
    assert reported(measured)["steps"] == []
    report(measured, 1, 1.5)
    assert [(row["tier"], row["count"], row["seconds"]) for row in reported(measured)["steps"]] == [
        ("machine", 10, 0.6)
    ]
    assert list(measured.state.step_s.values()) == [{0: 0.6}]


def test_steps_of_a_tier_are_counted_once_however_often_they_are_reported(measured):
    for seconds in (0.5, 0.5, 2.0):
        report(measured, 10, seconds)
        found = reported(measured)
    assert [row["count"] for row in found["steps"]] == [10, 20, 30]  # each since the attempt began
    assert found["steps_by_tier"] == [{"tier": "machine", "count": 30, "seconds": 1.0}]


def test_a_pattern_finds_seconds_and_rates_in_the_log(measured):
    lines = ["starting", *["step took 0.25 s"] * 10, *["4 it/s"] * 10, "0 it/s", "took . s"]
    (measured.attempt / "rank-0.log").write_text("\n".join(lines) + "\nstep took 99")
    assert reported(measured)["steps_by_tier"] == [{"tier": "machine", "count": 20, "seconds": 0.25}]


@pytest.mark.parametrize("measured", [ENDLESS], indirect=True)
def test_a_pattern_that_does_not_end_is_given_up_and_the_rest_goes_on(measured):
    (measured.attempt / "rank-0.log").write_text("1" * 3000 + " it took\n" * 20)
    assert reported(measured)["steps"] == []
    (measured.attempt / "rank-0.log").write_text("2x\n" * 20)
    report(measured, 10, 0.5)
    assert reported(measured)["steps_by_tier"] == [{"tier": "machine", "count": 10, "seconds": 0.5}]


def test_a_line_without_an_end_is_skipped(measured):
    (measured.attempt / "rank-0.log").write_bytes(b"\r" * _MOST + b"\n" + b"took 2 s\n" * 12)
    assert reported(measured)["steps"] == []
    assert reported(measured)["steps_by_tier"] == [{"tier": "machine", "count": 12, "seconds": 2.0}]


def test_an_attempt_that_ends_between_two_reads_is_read_from_where_it_is_kept(crank, tmp_path):
    live = crank()
    live.meter = Meter(live.controller, tmp_path)
    live.job = live.submit(gpus=2, seconds=1)
    live.step()
    folder = Folder(tmp_path, live.state.jobs[live.job].token)
    live.attempt = folder.path
    live.attempt.mkdir(parents=True)
    report(live, 10, 0.5)
    live.step(5, times=2)
    assert live.job not in live.state.jobs
    folder.archive()
    assert [(row["count"], row["seconds"]) for row in reported(live)["steps"]] == [(10, 0.5)]
    assert list(live.state.step_s.values()) == [{0: 0.5}]  # for the next job of its kind
    assert len(reported(live)["steps"]) == 1
    assert not live.meter._readings


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"count": 10}', '{"count": -1, "seconds": 1}', '{"count": 10, "seconds": NaN}']
)
def test_invalid_reports_are_ignored(measured, line):
    (measured.attempt / "steps.jsonl").write_text(f"{line}\n")
    assert reported(measured)["steps"] == []


def test_a_second_attempt_counts_beside_the_first(measured):
    for time, count, seconds in ((1.0, 10, 1.0), (2.0, 20, 1.0), (3.0, 20, 3.0)):
        now = measured.controller.now() + time
        measured.controller.store.note_steps([(now, "key", measured.job, 0, count, seconds)])
    assert reported(measured)["steps_by_tier"] == [{"tier": "machine", "count": 40, "seconds": 2.0}]
