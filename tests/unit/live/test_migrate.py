"""A store that is opened on another cluster: jobs it can't hold block no others, and old records keep their meaning."""

from pathlib import Path

import pytest

from berth.live import commands, views
from berth.live.api.service import Service
from berth.live.api.tokens import Tokens


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["4x4:V100-16", "2x4x2:V100-16"], ids=["no such tier", "too small"])
def test_a_job_whose_required_tier_is_gone_is_delayed_until_a_cluster_has_it(crank, cluster):
    live = crank()
    running = live.submit(gpus=16, seconds=1000)
    aside = live.submit(gpus=4, required="machine" if "x4x" in cluster else "rack")
    live.restart(cluster=cluster)
    behind = live.submit(gpus=1)
    live.step(1)
    assert live.state.jobs[aside].state == "delayed"
    assert live.state_of(running) == "placed" or behind  # what runs is another matter
    live.restart(cluster="2x2x4:V100-16")
    live.step(2000, times=4)
    assert live.state_of(aside) in ("placed", "finished")


def test_a_preferred_tier_that_the_cluster_no_longer_has_is_ignored(crank):
    live = crank()
    live.submit(gpus=16, seconds=1000)
    job = live.submit(gpus=2, preferred="rack")
    live.restart(cluster="4x4:V100-16")
    assert live.state.jobs[job].state == "queued"


def test_a_running_job_keeps_the_reason_of_its_place_under_another_policy(crank):
    live = crank()
    job = live.submit(gpus=4, seconds=1000)
    live.step(1)
    live.restart(policy="fifo")
    state = live.state
    assert views.why(state, state.jobs[job], state.now)["reason"]["sentence"] == "it fits within one machine"


def test_history_names_machines_and_tiers_as_they_were(crank):
    live = crank()
    job = live.submit(gpus=16, seconds=10)  # over the network: the third tier
    live.step(1, times=2)
    live.step(100)
    live.restart(cluster="2x4:V100-16")  # two tiers, and its machines have other names
    service = Service(live.controller, Tokens(live.folder), Path(live.folder))
    reported = service.history(job)
    assert reported["attempts"][0]["tier"] == "network"
    assert reported["attempts"][0]["places"] == {"r0-m0": 4, "r0-m1": 4, "r1-m0": 4, "r1-m1": 4}
    assert [event["tier"] for event in reported["events"] if event["kind"] == "start"] == ["network"]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["placed", "evicted"])
@pytest.mark.parametrize("last", [None, "1x4:V100-16", "2x4:V100-16"], ids=["up", "restarted", "enlarged"])
def test_a_delayed_job_whose_stopping_attempt_finishes_has_ended(crank, before, last):
    live = crank(cluster="2x4:V100-16", policy="srtf")
    job = live.submit(gpus=8, seconds=20, grace="60s")
    live.step(1)
    if before == "evicted":
        live.submit(gpus=8, seconds=1)
        assert live.state_of(job) == "queued"
    live.restart(cluster="1x4:V100-16")
    live.step()
    assert live.state_of(job) == "delayed"
    assert live.state.jobs[job].alive
    if last:
        live.restart(cluster=last)
    live.step(25, times=3)
    assert live.state_of(job) == "finished"
    live.restart()
    live.step(1)
    assert live.state_of(live.submit(gpus=1)) == "placed"


def test_a_delayed_job_that_is_cancelled_while_its_attempt_stops_is_not_retried(crank):
    live = crank(cluster="2x4:V100-16")
    job = live.submit(gpus=8, seconds=1000, grace="60s")
    live.step(1)
    live.restart(cluster="1x4:V100-16")
    live.step()
    live.ask(commands.cancel(job))
    assert live.state.jobs[job].alive
    assert live.state.next_ready() is None
    live.step(61, times=2)
    assert live.state_of(job) == "cancelled"


def test_an_attempt_that_was_never_launched_ends_with_its_machines(crank):
    live = crank(cluster="2x4:V100-16", policy="srtf")
    live.submit(gpus=8, seconds=1000, grace="60s")
    live.step(1)
    next_job = live.submit(gpus=8, seconds=10)
    [token] = live.state.jobs[next_job].alive
    assert live.state.attempts[token].state == "waits"  # for the first job to leave its devices
    live.restart(cluster="1x4:V100-16")
    live.step()
    assert live.state_of(next_job) == "delayed"
    assert not live.state.jobs[next_job].alive
    assert token not in live.state.attempts
    live.restart(cluster="2x4:V100-16")
    live.step(61, times=4)
    assert live.state_of(next_job) == "finished"
