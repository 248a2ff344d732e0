"""What the dashboard is given: the state in columns, the public journal, numbers over time."""

from __future__ import annotations

import json

import pytest

from berth.live import commands, views
from berth.live.api.dashboard_data import DashboardData
from berth.live.api.past_series import Counts
from berth.live.api.series import Series, sample_of
from berth.live.api.service import Service
from berth.live.api.tokens import Caller, Tokens
from berth.live.recover import apply_all, group_passes
from berth.live.store import Store
from berth.testing.fault_simulation import FaultRun


@pytest.fixture
def dashboard(crank, tmp_path):
    one = crank(policy="berth")
    return one, _dashboard(one, tmp_path)


def _dashboard(one, folder):
    return DashboardData(Service(one.controller, Tokens(folder), folder / "attempts"))


def test_now_is_the_state_in_columns(dashboard):
    crank, page = dashboard
    running, waiting = crank.submit(8, name="wide"), crank.submit(16, name="all", priority=3)
    crank.step(1.0, times=2)
    reported = page.now()
    assert reported["seq"] == crank.controller.store.seq
    assert reported["jobs"]["id"] == [running, waiting]
    assert reported["jobs"]["state"] == ["running", "queued"]
    assert reported["jobs"]["priority"] == [0, 3]
    assert [(one["job"], one["tier"]) for one in reported["attempts"]] == [(running, 1)]
    assert sum(len(numbers) for _, _, numbers in reported["attempts"][0]["seats"]) == 8
    crank.ask(commands.drain("r1-m1"))
    assert page.now()["unavailable"] == {"3": ["drained"]}


def test_the_journal_omits_commands_and_records_that_change_no_placement(dashboard):
    crank, page = dashboard
    job = crank.submit(4, env={"KEY": "hush"}, name="mine", restarts=1)
    crank.step(1.0, times=70)
    reported = page.journal(0, 1000)
    kinds = [record["kind"] for record in reported["records"] if record["job"] == job]
    assert kinds == ["submitted", "start", "started", "exited"]
    assert reported["records"][0]["kind"] == "opened"
    assert set(reported["records"][0]) == {"seq", "time", "kind", "job", "policy"}
    submitted = next(one for one in reported["records"] if one["kind"] == "submitted")
    assert submitted["spec"] == {"name": "mine", "gpus": 4, "restarts": 1}
    assert "hush" not in json.dumps(reported)
    assert "work" not in json.dumps(reported["records"])  # the command
    assert "pass" not in {one["kind"] for one in reported["records"]}


def test_the_journal_begins_where_the_cluster_became_what_it_is(crank, tmp_path):
    one = crank()
    one.submit(4)
    one.restart()
    before = _dashboard(one, tmp_path).journal(0, 1000)
    assert before["first"] == before["records"][0]["seq"] == 1
    one.restart(cluster="3x2x4:V100-16")
    seq = one.controller.store.seq
    one.submit(2)
    after = _dashboard(one, tmp_path).journal(0, 1000)
    assert after["first"] == after["records"][0]["seq"] == seq


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_pages_of_the_journal_have_no_holes(dashboard, limit):
    crank, page = dashboard
    for _ in range(4):
        crank.submit(2)
    whole = page.journal(0, 10_000)["records"]
    found, after, done = [], 0, False
    while not done:
        reported = page.journal(after, limit)
        found += reported["records"]
        after, done = reported["last"], reported["whole"]
    assert found == whole
    assert after == crank.controller.store.seq


def test_the_order_and_reasons_are_the_controllers(dashboard):
    crank, page = dashboard
    crank.submit(16)
    jobs = [crank.submit(2), crank.submit(4)]
    assert page.queue()["order"] == [job.id for job in views.queue(crank.state)]
    reported = page.reasons([*jobs, "nobody"])
    assert set(reported) == set(jobs)
    assert reported[jobs[0]]["sentence"] == "fewer than 2 devices are free"
    assert reported[jobs[0]]["expected_start"] > crank.controller.now()


def test_me_has_the_user_and_the_policies_for_a_what_if(dashboard):
    _, page = dashboard
    reported = page.me(Caller("alice", "user"))
    assert (reported["user"], reported["role"], reported["live"], reported["policy"]) == (
        "alice",
        "user",
        True,
        "berth",
    )
    assert "fifo" in reported["policies"]
    assert reported["cluster"]["name"] == "2x2x4:V100-16"


def test_a_sample_counts_devices_jobs_and_dollars(crank):
    one = crank(policy="fifo")
    series = Series(one.controller)
    one.submit(10)
    one.submit(8)
    seats = next(iter(one.state.attempts.values())).seats
    one.ask(commands.drain(one.cluster.machines[seats[-1].machine].name))  # two of its four devices are held
    one.step(30.0)
    reported = series.after(-1.0)
    last = {name: column[-1] for name, column in reported.items() if name != "timers"}
    assert (last["busy"], last["free"], last["unavailable"], last["external"]) == (10, 4, 2, 0)
    assert (last["queued"], last["running"]) == (1, 1)
    assert last["longest_wait_s"] == last["mean_wait_s"] >= 30.0
    assert last["usd_per_hour"] == pytest.approx(10 * one.cluster.device_types[0].usd_per_hour)


def test_a_time_bucket_keeps_its_last_sample_and_later_ones_are_sent_alone(crank):
    one = crank(policy="fifo")
    series = Series(one.controller)
    one.submit(1)
    one.step(10.0)
    one.submit(2)
    one.submit(3)
    reported = series.after(-1.0)
    assert reported["time"] == sorted(reported["time"])
    assert len({time // 2.0 for time in reported["time"]}) == len(reported["time"])
    assert reported["running"][-1] == 3
    assert series.after(reported["time"][-1])["time"] == []
    assert series.after(reported["time"][0])["time"] == reported["time"][1:]


def test_holding_jobs_are_those_that_wait_for_a_nearer_place(crank):
    one = crank(policy="dally:mode=manual,machine=1h,rack=2h")
    series = Series(one.controller)
    for machine in range(4):
        one.submit(3, job=f"m{machine}", seconds=600)
    one.submit(4, model="vgg16", seconds=3600)  # one device is free on each machine
    reported = series.after(-1.0)
    assert (reported["queued"][-1], reported["holding"][-1]) == (1, 1)
    assert reported["saves_s"][-1] > 0.0
    one.submit(8)  # never enough for it, so nothing is its choice
    reported = series.after(-1.0)
    assert (reported["queued"][-1], reported["holding"][-1]) == (2, 1)


def test_timers_are_listed_by_demand_and_tier(crank):
    one = crank(policy="dally:mode=manual,machine=1h,rack=2h")
    series = Series(one.controller)
    one.submit(2)
    timers = {(row["gpus"], row["tier"]): row["seconds"][-1] for row in series.after(-1.0)["timers"]}
    assert timers[2, "machine"] == 3600.0
    assert timers[2, "rack"] == 7200.0


def test_attention_has_failures_evictions_and_who_drained_what(crank, tmp_path):
    one = crank(policy="srtf")
    page = _dashboard(one, tmp_path)
    nothing = page.attention()
    assert (nothing["failed"], nothing["evicted"]) == ({"count": 0, "jobs": []}, {"count": 0, "jobs": []})
    assert nothing["machines"] == []
    bad = one.submit(2, seconds=5, name="bad", restarts=0, env={"FAILS": "1"})
    long = one.submit(16, seconds=5000, name="long")
    one.step(10.0, times=4)
    one.submit(16, seconds=1, name="quick")
    one.ask(commands.drain("r1-m1", by="ana"))
    reported = page.attention()
    assert [job["id"] for job in reported["failed"]["jobs"]] == [bad]
    assert reported["failed"]["jobs"][0]["sentence"] == "its command exited with an error"
    assert reported["evicted"] == {"count": 1, "jobs": [long]}
    drained = {"machine": "r1-m1", "why": "drained", "since": one.controller.now(), "by": "ana"}
    assert reported["machines"] == [drained]
    one.restart()
    assert _dashboard(one, tmp_path).attention()["machines"] == [drained]  # found in the journal
    one.ask(commands.drain("r1-m1", back=True))
    assert _dashboard(one, tmp_path).attention()["machines"] == []
    one.step(100_000.0)
    assert _dashboard(one, tmp_path).attention()["failed"]["count"] == 0


def test_curves_of_before_a_restart_come_from_the_journal(crank, tmp_path):
    one = crank(policy="fifo")
    before = _dashboard(one, tmp_path)
    for gpus in (4, 8, 16):
        one.submit(gpus, seconds=300)
        one.step(70.0)
    known = before.series(-1.0)
    one.restart()
    after = _dashboard(one, tmp_path)
    reported = after.series(-1.0)
    assert reported["complete"]
    rows = {
        name: dict(zip(reported["time"], reported[name], strict=True))
        for name in ("busy", "queued", "running")
    }
    for name, column in rows.items():
        for time, value in zip(known["time"], known[name], strict=True):
            if time in column:
                assert column[time] == value, (name, time)
    assert max(reported["busy"]) == 12
    assert min(reported["time"]) < one.controller.now() - 200.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 8, 14])
def test_counts_from_the_journal_are_those_of_the_state(tmp_path, seed):
    run = FaultRun(seed, tmp_path / "run")
    run.play()
    store = Store(tmp_path / "run")
    groups = list(group_passes(list(store.records())))
    store.close()
    state, counts, compared = None, Counts(run.cluster), 0
    for group in groups:
        state = apply_all(state, group, trust=False)
        for record in group:
            counts.apply(record)
        if any(job.ends_as is not None for job in state.jobs.values()):
            continue  # being stopped: the journal alone does not tell when its devices are free
        want, found = sample_of(state, state.now), counts.sample(state.now)
        for name in ("busy", "free", "unavailable", "external"):
            assert getattr(found, name) == getattr(want, name), (name, group[-1])
        assert (found.running, found.queued) == (
            sum(job.state == "placed" for job in state.jobs.values()),
            sum(job.state in ("queued", "delayed") for job in state.jobs.values()),
        )
        compared += 1
    assert compared > 100
