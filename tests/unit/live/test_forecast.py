"""What would happen from here: estimates, dry runs, what-ifs."""

import pytest

from berth.errors import InputError
from berth.live import forecast, views
from berth.live.snapshot import copy_of, facts_of
from berth.live.spec import JobSpec


def test_a_forecast_is_exact_if_durations_are(crank):
    live = crank(policy="fifo")
    jobs = [live.submit(gpus=16, seconds=seconds) for seconds in (100, 200, 50)]
    live.step(1)
    reported = forecast.forecast(copy_of(live.state))
    assert reported.whole
    starts = [reported.starts[job] - live.state.now for job in jobs[1:]]
    assert starts == pytest.approx([99, 299], abs=2)
    assert reported.tiers[jobs[1]] == "network"


def test_a_forecast_changes_nothing(crank):
    live = crank()
    live.submit(gpus=16, seconds=100)
    live.submit(gpus=4, seconds=100)
    before = facts_of(live.state)
    forecast.dry_run(copy_of(live.state), JobSpec(run="x", gpus=4), "me")
    forecast.what_if(copy_of(live.state), racks=1)
    assert facts_of(live.state) == before


def test_a_dry_run_says_where_and_when(crank):
    live = crank()
    name, reported = forecast.dry_run(copy_of(live.state), JobSpec(run="x", gpus=8), "me")
    assert reported.starts[name] == live.state.now
    assert sum(reported.places[name].values()) == 8
    assert reported.tiers[name] == "rack"


def test_more_racks_let_jobs_start_sooner(crank):
    live = crank()
    for _ in range(4):
        live.submit(gpus=16, seconds=100)
    as_it_is = forecast.forecast(copy_of(live.state))
    more = forecast.what_if(copy_of(live.state), racks=2)
    assert more.mean_left_s() < as_it_is.mean_left_s()
    with pytest.raises(InputError, match="policy"):
        forecast.what_if(copy_of(live.state), policy="nonsense")


def test_what_runs_goes_on_in_a_what_if_and_restores_nothing(crank):
    live = crank()
    live.submit(gpus=4, seconds=100)
    live.step(10)
    as_it_is = forecast.forecast(copy_of(live.state))
    more = forecast.what_if(copy_of(live.state), racks=1)
    assert more.mean_left_s() == pytest.approx(as_it_is.mean_left_s())


def test_a_what_if_counts_the_work_since_the_last_pass(crank):
    live = crank()
    live.submit(gpus=4, seconds=100)
    live.step(10)
    as_it_is, changed = copy_of(live.state), copy_of(live.state)
    as_it_is.now = changed.now = live.state.now + 30  # as after a record that needs no pass
    assert forecast.what_if(changed, racks=1).ends == pytest.approx(forecast.forecast(as_it_is).ends)


def test_what_runs_can_be_evicted_at_once_in_a_what_if(crank):
    live = crank(cluster="2x2x4")
    wide = live.submit(gpus=16, seconds=1000, preemptible=True)
    live.step(1)
    short = live.submit(gpus=16, seconds=20)
    changed = forecast.what_if(copy_of(live.state), policy="srtf", now=live.state.now + 5)
    assert changed.ends[short] < changed.ends[wide]


@pytest.mark.slow
def test_why_says_what_is_free_where(crank):
    live = crank(cluster="3x1x4:V100-16", policy="required")
    for name in "abc":
        live.submit(gpus=3, seconds=1000, job=name)  # one on each machine: a fourth device of each is free
    wide = live.submit(gpus=2, seconds=10, required="machine", job="wide")
    reported = views.why(live.state, live.state.jobs[wide], live.state.now)
    assert (reported["state"], reported["position"]) == ("queued", 1)
    assert [group["free"] for group in reported["free"]] == [1, 1, 1]
    assert reported["summary"] == "3 devices are free, but in 3 racks with at most 1 in one"
    assert (reported["reason"]["code"], reported["reason"]["tier"]) == ("too-spread", "machine")


@pytest.mark.parametrize(
    ("free", "gpus", "said"),
    [
        ([4, 8, 4], 16, "16 devices are free, but in 3 racks with at most 8 in one"),
        ([4, 0, 0], 16, "4 of the 16 devices it needs are free"),
        ([16, 2, 0], 16, "18 devices are free, 16 of them in one rack"),
    ],
)
def test_what_is_free_in_one_sentence(free, gpus, said):
    assert views.summary([{"free": count} for count in free], gpus, "rack") == said
