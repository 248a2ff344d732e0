"""Jobs that were cancelled while their processes have yet to leave: they stand nowhere, and nothing moves them."""

import pytest

from berth.live import commands, views
from berth.live.commands import ConflictError
from berth.live.forecast import forecast
from berth.live.snapshot import copy_of


@pytest.fixture
def leaving(crank):
    """A cluster with one job that was evicted, and then cancelled before it had left."""
    live = crank(policy="srtf")
    live.job = live.submit(gpus=16, seconds=5000, grace="60s")
    live.step(10)
    live.submit(gpus=16, seconds=10)
    assert live.state_of(live.job) == "queued"
    live.ask(commands.cancel(live.job))
    assert live.state.jobs[live.job].alive
    return live


def test_why_of_a_stopping_job_has_no_queue_position(leaving):
    reported = views.why(leaving.state, leaving.state.jobs[leaving.job], leaving.controller.now())
    assert reported["state"] == "stopping"
    assert "position" not in reported
    assert reported["reason"]["code"] == "stopping"


def test_the_priority_of_a_stopping_job_can_not_be_changed(leaving):
    with pytest.raises(ConflictError, match="is being stopped"):
        leaving.ask(commands.prioritise(leaving.job, 5))
    assert leaving.state.jobs[leaving.job].spec.priority == 0


def test_a_stopping_job_is_cancelled_once(leaving):
    assert leaving.ask(commands.cancel(leaving.job)) == {"job": leaving.job, "state": "cancelled"}
    leaving.step(61, times=2)
    assert leaving.state_of(leaving.job) == "cancelled"


def test_a_forecast_comes_to_the_end_of_all_others(leaving):
    reported = forecast(copy_of(leaving.state))
    assert reported.whole
    assert leaving.job not in reported.ends


def test_a_job_that_failed_says_when_it_is_tried_again(crank):
    live = crank()
    job = live.submit(env={"FAILS": "1"}, seconds=5)
    live.step(1)
    live.step(10)
    assert live.state_of(job) == "delayed"
    reason = views.reason_of(live.state, live.state.jobs[job], live.controller.now())
    assert (reason.code, reason.sentence) == (
        "delayed",
        "its last attempt failed: its command exited with an error; it is retried soon",
    )
    assert 0 < reason.seconds_left <= 2


def test_a_job_that_fits_nowhere_any_more_says_so(crank):
    live = crank()
    live.submit(gpus=16, seconds=1000)
    job = live.submit(gpus=16)
    live.restart(cluster="1x1x4:V100-16")
    reason = views.reason_of(live.state, live.state.jobs[job], live.controller.now())
    assert reason.code == "does-not-fit"
