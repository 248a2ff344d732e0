"""The index of a job whose duration is not known, and what is expected to be left of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from berth.schedule import estimates
from berth.schedule.policies.registry import load_policy
from berth.simulate.events import event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs


def plain(kernel):
    """The Python function that a kernel is compiled from."""
    return getattr(kernel, "py_func", kernel)


step_of = plain(estimates.step_of)


def test_with_little_spread_the_index_is_about_what_is_left():
    for done in (0.0, 0.25, 0.5):
        assert estimates._INDEX[0, step_of(done)] == pytest.approx(1.0 - done, rel=0.12)
        assert estimates._LEFT[0, step_of(done)] == pytest.approx(1.0 - done, rel=0.12)


@pytest.mark.parametrize("row", range(len(estimates._SPREADS)))
def test_a_job_that_outlives_its_estimate_by_far_goes_behind_those_that_did_not(row):
    index = estimates._INDEX[row]
    beyond = step_of(8.0)
    assert index[beyond] > 2 * index[0]
    assert (np.diff(index[step_of(30.0) :]) > 0).all()


@pytest.mark.slow
def test_the_index_is_that_of_gittins_by_brute_force():
    """Least expected service per completion, over all spans to look ahead, from a million draws."""
    row = estimates._SPREADS.index(2.0)
    draws = np.exp(2.0 * np.random.default_rng(0).standard_normal(300_000))
    wide = np.exp(estimates._SPREADS[-1] * np.random.default_rng(1).standard_normal(300_000))
    mixed = np.where(np.random.default_rng(2).random(300_000) < estimates._OUTLIERS, wide, draws)
    for done in (0.0, 1.0, 8.0):
        left = mixed[mixed > done] - done
        spans = np.quantile(left, np.linspace(0.001, 0.999, 400))
        best = min(np.minimum(left, span).mean() / (left <= span).mean() for span in spans)
        assert estimates._INDEX[row, step_of(done)] == pytest.approx(best, rel=0.15)


@pytest.mark.parametrize(
    ("done", "edge"), [(2.0**-8, 1), (2.0**-7.5 * 1.001, 2), (1.0, 17), (1.5, 18), (1e9, 43)]
)
def test_work_done_is_counted_in_steps_of_the_root_of_two(done, edge):
    assert step_of(done) == edge
    assert step_of(0.0) == 0


def test_a_job_that_outlives_its_estimate_gives_way():
    """It was estimated at 60 s and takes ten hours: a job of ten minutes takes its device once that shows."""
    trace = jobs([(0, 1, 36_000), (30, 1, 600)])
    trace = replace(trace, frame=trace.frame.with_columns(pl.Series("estimate_s", [60.0, 600.0])))
    setting = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, log=True, estimates="learned")
    log = event_frame(simulate(trace, cluster([1]), load_policy("berth"), setting))
    evicted = log.filter(log["event"] == "evicted").select("time_s", "job").rows()
    assert [job for _, job in evicted][:1] == ["j0"]
    assert 60 < evicted[0][0] < 3600
    ends = dict(log.filter(log["event"] == "finished").select("job", "time_s").rows())
    assert ends["j1"] < 5000 < ends["j0"]


def starts(policy, rows, **setting):
    """(time, job) of every start on one device, jobs with a known duration."""
    given = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, log=True, **setting)
    events = event_frame(simulate(jobs(rows), cluster([1]), load_policy(policy), given))
    started = events.filter(pl.col("event") == "started")
    return list(zip(started["time_s"].to_list(), started["job"].to_list(), strict=True))


LONG, SHORT, URGENT = (0, 1, 1000), (10, 1, 100), (10, 1, 100, None, None, 5)


@pytest.mark.parametrize(
    ("policy", "later", "at"),
    [
        ("berth", SHORT, 10.0),
        ("berth:min_run=5m", SHORT, 300.0),
        ("berth:min_run=5m", URGENT, 10.0),
        ("berth:keep=9", SHORT, 10.0),
        ("berth:keep=11", SHORT, 1000.0),
    ],
)
def test_how_long_a_running_job_is_left_alone(policy, later, at):
    found = starts(policy, [LONG, later])
    assert found[1][0] == pytest.approx(at)


def test_young_jobs_give_way_to_higher_priorities_only():
    """An urgent gang waits for two devices, one of which is held by a job that can't be preempted."""
    rows = [(0, 1, 5000), (100, 1, 1000), (110, 2, 50, None, None, 5), (120, 1, 10)]
    trace = jobs(rows)
    trace = replace(
        trace, frame=trace.frame.with_columns(pl.Series("preemptible", [0, 1, 1, 1], dtype=pl.Int32))
    )
    given = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, log=True)
    log = event_frame(simulate(trace, cluster([2]), load_policy("berth:min_run=5m"), given))
    started = dict(
        log.filter(pl.col("event") == "started").unique("job", keep="first").select("job", "time_s").rows()
    )
    assert started["j3"] == pytest.approx(400.0)


@pytest.mark.parametrize(
    ("values", "mean", "variance"),
    [([2.0], 2.0, 0.0), ([2.0, 4.0], 3.0, 1.0), ([2.0, 4.0, 6.0], 4.0, 8 / 3), ([5.0] * 7, 5.0, 0.0)],
)
def test_mean_and_variance_are_those_of_the_values_seen(values, mean, variance):
    seen = SimpleNamespace(count=0.0, mean=0.0, variance=0.0)
    for value in values:
        plain(estimates.record)(seen, value)
    assert (seen.count, seen.mean, seen.variance) == pytest.approx((len(values), mean, variance), rel=1e-12)


def test_a_value_after_a_hundred_others_counts_for_one_hundredth():
    """The mean moves from 0 by 100 / 100, and the variance to 0.99 (1 + 100 x 100 / 100)."""
    seen = SimpleNamespace(count=100.0, mean=0.0, variance=1.0)
    plain(estimates.record)(seen, 100.0)
    assert (seen.count, seen.mean, seen.variance) == pytest.approx((100.0, 1.0, 99.99), rel=1e-12)


@pytest.mark.parametrize(
    ("count", "mean", "variance"),
    [
        (0.0, 1.0, 5.0),  # nothing seen: the wider class
        (2.0, 2.0, 0.5 * 5 + 0.5 * 1 + 0.25 * 4),  # as much as the wider class counts: half of each
        (6.0, 2.5, 0.25 * 5 + 0.75 * 1 + 0.1875 * 4),
    ],
)
def test_a_narrower_class_counts_as_much_as_it_has_seen_against_two_jobs(count, mean, variance):
    """The wider class has mean 1 and variance 5, the narrower 3 and 1: a mixture, with the distance of the means."""
    seen = SimpleNamespace(count=count, mean=3.0, variance=1.0)
    assert plain(estimates.narrowed)(seen, 1.0, 5.0) == pytest.approx((mean, variance), rel=1e-12)
