"""Rows of the queue say what a job waits for, and every word of it is true."""

from __future__ import annotations

import pytest

from berth.live import commands, forecast, views
from berth.live.outlook import FITS, IN_TIME, SPARE, Outlook
from berth.live.snapshot import copy_of
from berth.live.spec import JobSpec


def outlook(live, **options) -> Outlook:
    copy = copy_of(live.state)
    return Outlook(copy, live.controller.now(), pending=live.controller.pending, events=300, **options)


@pytest.fixture
def half(crank):
    """Eight of sixteen devices are busy for 1,000 s, and a job of all sixteen is first in the queue."""
    live = crank(policy="fit-first")
    live.submit(gpus=8, seconds=1000, job="half")
    live.step(1)
    live.submit(gpus=16, seconds=100, job="big", priority=50)
    return live


def test_a_row_has_the_free_devices_and_the_end_that_allows_the_start(half):
    reported = outlook(half)
    assert reported.sentence("big", half.controller.now()) == (
        "needs 16 devices; 8 are free; starts in 16m40s when half ends"
    )
    row = reported.row("big", half.controller.now())
    assert row["starts_after"] == ["half"]
    assert row["expected_start"] == pytest.approx(half.controller.now() + 1000)
    assert reported.row("half", half.controller.now())["expected_end"] == row["expected_start"]


def test_a_row_is_the_same_before_and_after_its_reason_was_asked_for(crank):
    """A pass on a full cluster does not reach the queue: what `why` finds out then is not the policy's decision."""
    live = crank()
    live.submit(gpus=16, seconds=1000, job="wide")
    live.step(1)
    live.submit(gpus=2, job="next")
    now = live.controller.now()
    before = outlook(live).sentence("next", now)
    assert views.reason_of(live.state, live.state.jobs["next"], now).code == "no-room"
    assert before == outlook(live).sentence("next", now)
    assert before == "needs 2 devices; 0 are free; starts in 16m40s when wide ends"


def test_a_row_names_the_backfilling_jobs_and_why_they_do_not_delay_it(half):
    half.submit(gpus=4, seconds=2000, job="long")
    half.submit(gpus=4, seconds=100, job="short")
    half.clock.advance(1)
    copy = copy_of(half.state)
    assert half.state_of("short") == "placed"  # it ends in time
    assert half.state_of("long") == "queued"
    reported = Outlook(copy, half.controller.now(), pending=False, events=300)
    assert reported.overtakers_of("big").first == ()  # what has started is not behind it any more
    assert reported.row("long", half.controller.now())["overtaken_by"] == []


def test_a_row_has_later_overtakers_and_how_they_overtake(crank):
    live = crank(policy="fit-first", cluster="1x2x4:V100-16")
    live.submit(gpus=4, seconds=1000, job="late")
    live.submit(gpus=4, seconds=100, job="soon")
    live.step(1)
    live.submit(gpus=8, seconds=10, job="big", priority=50)
    live.submit(gpus=4, seconds=500, job="short")
    live.submit(gpus=4, seconds=5000, job="long")
    reported = outlook(live)
    assert reported.overtakers_of("big").first == (("short", IN_TIME),)
    assert "will be overtaken by short: backfill, it ends before this job can start" in reported.sentence(
        "big", reported.expected.now
    )
    assert reported.expected.starts["big"] < reported.expected.starts["long"]


def test_devices_that_the_first_job_does_not_need_are_called_spare(crank):
    live = crank(policy="easy", cluster="1x2x4:V100-16")
    live.submit(gpus=4, seconds=1000, job="late")
    live.submit(gpus=4, seconds=100, job="soon")
    live.step(1)
    live.submit(gpus=6, seconds=10, job="big")
    live.submit(gpus=2, seconds=5000, job="long")
    assert outlook(live).overtakers_of("big").first == (("long", SPARE),)


def test_equal_priorities_that_fit_sooner_are_not_called_backfill(crank):
    live = crank(policy="fit-first", cluster="1x2x4:V100-16")
    live.submit(gpus=4, seconds=1000, job="late")
    live.submit(gpus=4, seconds=100, job="soon")
    live.step(1)
    live.submit(gpus=8, seconds=10, job="big")
    live.submit(gpus=4, seconds=5000, job="long")
    reported = outlook(live)
    assert reported.overtakers_of("big").first == (("long", FITS),)
    assert reported.sentence("big", reported.expected.now).endswith(
        "when long ends; will be overtaken by long, which fits sooner"
    )


def test_a_job_that_waits_for_one_rack_says_so_where_lower_priorities_start_before_it(crank):
    live = crank(policy="berth")
    for name, seconds in (("a1", 100), ("a2", 1000), ("b1", 100), ("b2", 1000)):
        live.submit(gpus=4, seconds=seconds, job=name)
    live.step(1)
    live.submit(gpus=8, seconds=3600, job="first", priority=50, model="vgg16")
    alone = outlook(live)
    live.submit(gpus=4, seconds=5000, job="small", priority=-5)
    reported, now = outlook(live), live.controller.now()
    assert reported.expected.starts["small"] < reported.expected.starts["first"]
    assert reported.expected.tiers["first"] == "rack"
    assert reported.sentence("first", now).startswith("needs 8 devices in one rack; none is free; starts in ")
    assert "will be overtaken by small" in reported.sentence("first", now)
    assert alone.expected.starts["first"] <= reported.expected.starts["first"]


def test_an_overdue_job_is_called_so_and_nothing_starts_now(half):
    half.backend.work.clear()
    for life in half.backend._lives.values():
        life.ends = 1e9  # it outlives its 1,000 s
    half.clock.advance(1500)
    reported, now = outlook(half), half.controller.now()
    assert reported.overdue["half"] == pytest.approx(501, abs=2)
    assert reported.expected.starts["big"] == pytest.approx(now + 250)  # a quarter of what it was given
    assert reported.sentence("big", now) == (
        "needs 16 devices; 8 are free; starts when half ends (8m21s overdue, 4m10s more assumed)"
    )
    half.step(1)  # a pass extends the estimate: it is overdue all the same
    half.submit(gpus=1, seconds=10_000, job="other")
    assert outlook(half).overdue["half"] == pytest.approx(502, abs=2)


def test_too_few_machines_in_service_are_the_reason_and_named(crank):
    live = crank(policy="fit-first")
    live.ask(commands.drain("r0-m0"))
    live.submit(gpus=16, seconds=100, job="big")
    reported = outlook(live)
    assert reported.row("big", live.controller.now())["blocker"] == (
        "needs 16 devices, and the machines in service have 12 within one network; out of service: r0-m0"
    )
    assert reported.row("big", live.controller.now())["expected_start"] is None
    name, played = forecast.dry_run(copy_of(live.state), JobSpec(run="x", gpus=16), "me")
    assert name not in played.starts
    assert played.complete


def test_a_reservation_names_the_job_it_is_for(half):
    half.submit(gpus=4, seconds=5000, job="long")
    reason = views.reason_of(half.state, half.state.jobs["long"], half.controller.now())
    assert (reason.code, reason.sentence) == (
        "held-for-other",
        "the devices that would fit are reserved for big",
    )


def test_a_forecast_runs_no_pass_that_the_controller_would_not(half, monkeypatch):
    passes = []
    decide = forecast.decide
    monkeypatch.setattr(forecast, "decide", lambda state, now: passes.append(now) or decide(state, now))
    now = half.controller.now() + 7
    forecast.forecast(copy_of(half.state), now=now, pending=False)
    assert passes
    assert min(passes) > now
    passes.clear()
    forecast.forecast(copy_of(half.state), now=now, pending=True)
    assert passes[0] == now
