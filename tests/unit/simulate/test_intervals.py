"""Intervals of known cases, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from berth.simulate.intervals import block_length, job_intervals, ratio_interval


def correlated(rho: float, count: int, generator: np.random.Generator) -> np.ndarray:
    """Log-normal times whose logarithms are autoregressive: neighbours are alike."""
    steps = generator.standard_normal(count) * math.sqrt(1 - rho * rho)
    logs = np.empty(count)
    now = generator.standard_normal()
    for at in range(count):
        logs[at] = now = rho * now + steps[at]
    return np.exp(logs)


def test_the_interval_over_seeds_is_students_over_the_logarithms():
    # logarithms -0.1, 0, 0.1: mean 0, standard error 0.1 / sqrt(3), t(0.975, 2) = 4.302653
    ratio, low, high = ratio_interval(np.exp([-0.1, 0.0, 0.1]), np.ones(3))
    reach = 4.302653 * 0.1 / np.sqrt(3)
    assert (ratio, low, high) == pytest.approx((1.0, np.exp(-reach), np.exp(reach)), rel=1e-6)


def test_a_constant_ratio_has_an_interval_of_no_width():
    assert ratio_interval(np.array([2.0, 4.0, 8.0]), np.array([1.0, 2.0, 4.0])) == pytest.approx(
        (2.0, 2.0, 2.0)
    )


def test_the_bootstrap_is_paired_so_a_constant_factor_is_certain():
    base = np.random.default_rng(1).exponential(100.0, 500)
    for interval in job_intervals(0.5 * base, base).values():
        assert interval == pytest.approx((0.5, 0.5))


def test_a_single_job_has_no_interval():
    assert set(job_intervals(np.array([3.0]), np.array([4.0])).values()) == {None}


def test_independent_jobs_need_no_blocks_and_alike_neighbours_long_ones():
    generator = np.random.default_rng(2)
    assert block_length(generator.standard_normal(2000)) < 4
    assert 25 < block_length(np.log(correlated(0.9, 2000, generator))) < 130
    assert block_length(np.full(100, 0.1)) == 1.0


def test_independent_jobs_have_the_width_of_the_normal_approximation():
    generator = np.random.default_rng(3)
    pairs = (generator.exponential(100.0, (2, 1000)) for _ in range(10))
    widths = [np.diff(job_intervals(*pair, draws=300)["mean_jct_s"]) for pair in pairs]
    assert np.mean(widths) == pytest.approx(4 * np.sqrt(2 / 1000), rel=0.1)


def test_jobs_that_share_their_luck_have_wider_intervals_than_the_same_jobs_shuffled():
    """The variance of a mean is (1 + rho) / (1 - rho) times as large: at 0.9 its interval 4.4 times as wide."""
    generator = np.random.default_rng(4)
    mine, base = (correlated(0.9, 3000, generator) for _ in range(2))
    order = generator.permutation(3000)
    widths = [
        float(np.diff(np.log(job_intervals(*pair, draws=300)["mean_jct_s"]))[0])
        for pair in ((mine, base), (mine[order], base[order]))
    ]
    assert 2.5 < widths[0] / widths[1] < 6


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_a_95_percent_interval_of_a_thousand_jobs_holds_the_truth_in_90_percent(rho):
    generator = np.random.default_rng(5)
    held = dict.fromkeys(("mean_jct_s", "p99_jct_s"), 0)
    for _ in range(200):
        pair = correlated(rho, 1000, generator), correlated(rho, 1000, generator)
        for name, (low, high) in job_intervals(*pair, draws=200).items():
            held[name] += low <= 1.0 <= high
    assert min(held.values()) >= 180
