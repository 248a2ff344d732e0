"""Machines fail, are repaired and are drained: drawn from a seed, and played by the engine."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from berth.cluster.load import load_cluster
from berth.errors import InputError
from berth.simulate.engine_state import FAULT, FaultKind
from berth.simulate.events import event_frame
from berth.simulate.faults import Drain, FaultSpec, check_faults, draw_faults, horizon_of, parse_faults
from berth.simulate.run import Setting, simulate
from berth.testing import check_policy, cluster, faults, jobs
from berth.testing.policies import EXERCISES

DAY = 86400.0


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("mtbf=30d,mttr=4h,seed=1", FaultSpec(30 * DAY, 4 * 3600.0, 1)),
        ("mtbf=12h", FaultSpec(0.5 * DAY)),
        ("drain=r0-m3@2d+6h", FaultSpec(drains=(Drain("r0-m3", 2 * DAY, 6 * 3600.0),))),
        ("drain=a@0+1h, drain=b@1h+1h", FaultSpec(drains=(Drain("a", 0, 3600), Drain("b", 3600, 3600)))),
        ("", FaultSpec()),
    ],
)
def test_faults_are_read_from_one_line(text, spec):
    assert parse_faults(text) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mtbf", "gives no value"),
        ("mtbf=30", "has no unit"),
        ("mtbf=0s", "above zero"),
        ("mttr=0s,mtbf=1d", "above zero"),
        ("seed=-1", "not a seed"),
        ("mtfb=1d", "no fault setting is called 'mtfb'"),
        ("drain=m0", "not a drain"),
        ("drain=m0@1h", "not a drain"),
    ],
)
def test_a_slip_is_named(text, complaint):
    with pytest.raises(InputError, match=complaint):
        parse_faults(text)


def test_failures_come_as_often_and_last_as_long_as_asked():
    drawn = draw_faults(FaultSpec(10 * DAY, DAY, seed=2), load_cluster("100x8"), 1000 * DAY)
    failures = drawn[drawn["what"] == FaultKind.FAIL]
    assert len(failures) == pytest.approx(100 * 1000 / 11, rel=0.05)
    check_faults(drawn, load_cluster("100x8"))
    down_s = drawn["time"][drawn["what"] == FaultKind.REPAIR].sum() - failures["time"].sum()
    assert down_s / len(failures) == pytest.approx(DAY, rel=0.05)


def test_each_machine_has_its_own_stream():
    spec = FaultSpec(DAY, 3600.0, seed=7)
    few, many = (draw_faults(spec, load_cluster(text), 30 * DAY) for text in ("3x8", "5x8"))
    assert np.array_equal(few, many[many["machine"] < 3])
    assert not np.array_equal(few, draw_faults(FaultSpec(DAY, 3600.0, seed=8), load_cluster("3x8"), 30 * DAY))
    first = few[few["machine"] == 0]["time"][0]
    assert first != few[few["machine"] == 1]["time"][0]


def test_every_failure_is_repaired_even_after_the_horizon():
    drawn = draw_faults(FaultSpec(DAY, 30 * DAY, seed=1), load_cluster("20x8"), 2 * DAY)
    assert (drawn["what"] == FaultKind.FAIL).sum() == (drawn["what"] == FaultKind.REPAIR).sum() > 0
    assert drawn["time"].max() > 2 * DAY


def test_a_machine_to_drain_must_exist_and_failures_must_be_countable():
    with pytest.raises(InputError, match="no machine is called 'm9'"):
        draw_faults(parse_faults("drain=m9@1h+1h"), cluster([4, 4]), DAY)
    with pytest.raises(InputError, match="beyond what berth takes"):
        draw_faults(parse_faults("mtbf=1s"), load_cluster("100x8"), 1000 * DAY)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(5.0, 0, FaultKind.FAIL), (1.0, 0, FaultKind.REPAIR)], "order of time"),
        ([(5.0, 9, FaultKind.FAIL)], "names a machine"),
        ([(5.0, 0, FaultKind.REPAIR)], "put back before"),
        ([(float("nan"), 0, FaultKind.FAIL)], "order of time"),
    ],
)
def test_faults_that_can_not_be_played_are_refused(rows, complaint):
    setting = Setting(network="off", faults=np.array(rows, FAULT))
    with pytest.raises(InputError, match=complaint):
        simulate(jobs([(0, 1, 10)]), cluster([4]), EXERCISES["fit-first"], setting)


def play(machines, rows, down, policy="fit-first", **values):
    setting = Setting(**{"network": "off", "eviction_s": 0.0, **values}, log=True, faults=faults(down))
    return check_policy(EXERCISES[policy], jobs(rows), cluster(machines), setting)


def test_a_gang_loses_all_its_places_when_one_of_its_machines_fails():
    run = play([2, 2], [(0, 3, 100)], [(40, 1, "fail"), (60, 1, "repair")], checkpoint_s=0.0)
    assert run.records["end_s"].tolist() == [160.0]
    assert run.accounts["lost_gpu_s"].tolist() == [120.0]
    assert event_frame(run).filter(pl.col("event") == "evicted")["reason"].to_list() == ["host-lost"]


@pytest.mark.parametrize(("checkpoint_s", "again_s"), [(0.0, 45.0), (10.0, 5.0), (30.0, 15.0), (45.0, 0.0)])
def test_only_what_was_done_since_the_last_checkpoint_is_done_again(checkpoint_s, again_s):
    down = [(45, 0, "fail"), (50, 0, "repair")]
    run = play([1], [(0, 1, 100)], down, checkpoint_s=checkpoint_s, eviction_s=7.0)
    assert run.records["end_s"].tolist() == [50 + 7 + (100 - 45) + again_s]
    assert run.accounts["lost_gpu_s"].tolist() == [again_s + 7.0]


def test_a_drained_machine_keeps_what_runs_and_takes_nothing_new():
    run = play([2, 2], [(0, 1, 100), (10, 1, 10), (10, 2, 10)], [(5, 0, "drain"), (500, 0, "undrain")])
    places = event_frame(run).filter(pl.col("event") == "started")["places"].to_list()
    assert places == [["m0:1"], ["m1:1"], ["m1:2"]]
    assert run.records["first_start_s"].tolist() == [0.0, 10.0, 20.0]


def test_a_machine_that_fails_while_it_is_drained_comes_back_when_both_are_over():
    down = [(5, 0, "drain"), (10, 0, "fail"), (20, 0, "undrain"), (40, 0, "repair")]
    run = play([2], [(0, 1, 100), (15, 1, 10)], down, checkpoint_s=1.0)
    assert run.records["first_start_s"].tolist() == [0.0, 40.0]
    assert run.records["evictions"].tolist() == [1, 0]


def test_two_failures_of_one_machine_at_once_need_two_repairs():
    down = [(5, 0, "fail"), (5, 0, "fail"), (10, 0, "repair"), (20, 0, "repair")]
    assert play([2], [(6, 2, 10)], down).records["first_start_s"].tolist() == [20.0]


def test_jobs_wait_while_nothing_is_up_and_the_trace_may_end_with_machines_down():
    down = [(5, 0, "fail"), (5, 1, "fail"), (100, 0, "repair"), (10_000, 1, "repair")]
    run = play([2, 2], [(10, 2, 10), (11, 2, 10)], down)
    assert run.records["first_start_s"].tolist() == [100.0, 110.0]
    assert event_frame(run)["time_s"].max() == 120.0  # the repair at 10,000 s was not waited for


@pytest.mark.slow
def test_with_random_faults_everything_still_adds_up():
    trace = jobs([(60.0 * number, 1 + number % 7, 900.0 + 77 * number) for number in range(60)])
    machines = cluster([[4, 4, 4], [8, 8]])
    drawn = draw_faults(FaultSpec(7200.0, 600.0, seed=4), machines, horizon_of(trace, machines))
    for policy in ("fit-first", "least-left", "everything"):
        setting = Setting(log=True, faults=drawn, checkpoint_s=300.0)
        run = check_policy(EXERCISES[policy], trace, machines, setting)
        assert (run.records["evictions"] > 0).any()
