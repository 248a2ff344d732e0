"""Intervals of known cases, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.comparison import compare
from berth.simulate.intervals import (
    FEWEST_RESAMPLED,
    FEWEST_SEEDS,
    median_interval,
    paired_ratios,
    resampled_interval,
)
from berth.simulate.run import Setting
from berth.simulate.trace_source import TraceSource


@pytest.mark.parametrize("count", [6, 7, 8, 9, 10, 15, 20, 41, 100])
def test_the_interval_of_the_median_is_scipys(count):
    ratios = np.random.default_rng(count).lognormal(size=count)
    expected = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
    assert median_interval(ratios) == pytest.approx((expected.low, expected.high), rel=1e-12)


@pytest.mark.parametrize("count", range(1, FEWEST_SEEDS))
def test_fewer_than_six_traces_have_no_interval_of_the_median(count):
    assert median_interval(np.ones(count)) is None


def test_six_traces_are_enough():
    assert median_interval(np.array([0.9, 0.5, 0.8, 1.2, 0.7, 0.6])) == (0.5, 1.2)


def test_the_interval_holds_the_median_where_few_traces_have_all_of_the_difference():
    """Nine in ten ratios are near 1, one in ten is a seventh; Student's t holds the mean logarithm in half."""
    generator = np.random.default_rng(1)
    logs = 0.01 * generator.standard_normal((2000, 6)) - 2.0 * (generator.random((2000, 6)) < 0.1)
    median = 0.01 * stats.norm.ppf((0.5 - 0.1) / 0.9)
    intervals = [median_interval(row) for row in np.exp(logs)]
    held = np.mean([low <= np.exp(median) <= high for low, high in intervals])
    assert held >= 0.95
    reach = stats.t.ppf(0.975, 5) * logs.std(axis=1, ddof=1) / np.sqrt(6)
    assert np.mean(np.abs(logs.mean(axis=1) + 0.2) <= reach) < 0.7


def test_fewer_than_twenty_resampled_traces_have_no_interval():
    assert resampled_interval(np.ones(FEWEST_RESAMPLED - 1)) is None


def test_the_interval_of_twenty_resampled_traces_is_their_range():
    ratios = np.random.default_rng(2).permutation(np.linspace(0.5, 1.4, 20))
    assert resampled_interval(ratios) == (0.5, 1.4)


def test_the_interval_of_many_resampled_traces_leaves_the_extremes_out_but_not_the_given_trace():
    ratios = np.arange(1.0, 202.0)
    assert resampled_interval(ratios[::-1]) == (6.0, 201.0)  # the given trace is the first: 201
    assert resampled_interval(np.roll(ratios, 100)) == (6.0, 196.0)


def test_ratios_are_paired_and_nothing_over_nothing_is_one():
    ratios = paired_ratios(np.array([2.0, 0.0, 4.0]), np.array([4.0, 0.0, 2.0]))
    assert ratios.tolist() == [0.5, 1.0, 2.0]


@pytest.mark.slow
def test_an_interval_from_one_trace_holds_the_median_over_traces(tmp_path):
    """The completion times of one run, in blocks, gave intervals that held it in 57 % of cases (1,000 jobs)."""
    cluster = load_cluster("1x2x8:H100")
    policies = {name: load_policy(name) for name in ("fifo", "srtf")}
    text = "generate:jobs=150,load=0.6,durations=lognormal:1h:1,sizes=powers-of-two,seed={}"
    over_all = compare(TraceSource(text.format(0)), cluster, policies, Setting(network="off"), seeds=100)
    truth, held = over_all.differences[0].ratio, 0
    for seed in range(12):
        path = tmp_path / f"{seed}.csv"
        TraceSource(text.format(seed)).trace(cluster).write_csv(path)
        mean_jct = compare(TraceSource(str(path)), cluster, policies, Setting(network="off")).differences[0]
        held += mean_jct.low <= truth <= mean_jct.high
    assert held >= 11
