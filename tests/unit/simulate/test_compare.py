"""Intervals of known cases, and which method is taken when."""

from __future__ import annotations

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.comparison import Difference, bootstrap_interval, compare, ratio_interval
from berth.simulate.run import Setting
from berth.simulate.source import Source


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
    assert bootstrap_interval(0.5 * base, base, lambda draw: draw.mean(axis=-1)) == pytest.approx((0.5, 0.5))


def test_the_bootstrap_mostly_covers_the_truth_of_equal_distributions():
    generator = np.random.default_rng(3)
    draws = (generator.exponential(100.0, (2, 1000)) for _ in range(20))
    found = np.array([bootstrap_interval(*pair, lambda draw: draw.mean(axis=-1)) for pair in draws])
    covered = (found[:, 0] < 1.0) & (found[:, 1] > 1.0)
    assert covered.sum() >= 16
    assert np.diff(found).mean() == pytest.approx(4 * np.sqrt(2 / 1000), rel=0.1)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [
        (0.8, 0.7, 0.9, "better"),
        (1.2, 1.1, 1.3, "worse"),
        (0.9, 0.7, 1.1, "within noise"),
        (1.0, 1.0, 1.0, "the same"),
        (0.9, None, None, "better"),
        (1.0, None, None, "the same"),
    ],
)
def test_a_difference_is_called_by_its_interval(ratio, low, high, verdict):
    assert Difference("a", "b", "mean_jct_s", 1.0, 1.0, ratio, low, high).verdict == verdict


POLICIES = {"fifo": load_policy("fifo"), "srtf": load_policy("srtf")}


def test_a_generated_trace_is_compared_over_seeds():
    cluster = load_cluster("1x2x4:H100")
    source = Source("generate:jobs=60,load=1.5,durations=exponential:1h,sizes=powers-of-two")
    found = compare(source, cluster, POLICIES, Setting(), seeds=3)
    assert (found.method, found.seeds, len(found.results)) == ("seeds", 3, 3)
    assert [one.metric for one in found.differences] == ["mean_jct_s", "p99_jct_s", "makespan_s"]
    assert found.differences[0].verdict == "better"
    jcts = {row[0].mean_jct_s for row in found.results}
    assert len(jcts) == 3, "every seed plays another trace"


def test_one_trace_without_chance_is_bootstrapped_and_its_makespan_has_no_interval(tmp_path):
    path = tmp_path / "jobs.csv"
    rows = [f"{i},{i},4,{1 + i % 7 * 30},resnet50" for i in range(40)]
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s,model", *rows]) + "\n")
    found = compare(Source(str(path)), load_cluster("1x1x4:H100"), POLICIES, Setting(), seeds=5)
    assert (found.method, found.seeds) == ("bootstrap", 1)
    mean, _, makespan = found.differences
    assert mean.low < mean.ratio < mean.high
    assert (makespan.low, makespan.high) == (None, None)
