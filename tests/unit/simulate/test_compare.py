"""Intervals of known cases, and which method is taken when."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate import comparison
from berth.simulate.compared import COMPARED
from berth.simulate.comparison import Difference, compare
from berth.simulate.faults import parse_faults
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import TraceSource


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [
        (0.8, 0.7, 0.9, "better"),
        (1.2, 1.1, 1.3, "worse"),
        (0.9, 0.7, 1.1, "within noise"),
        (1.0, 1.0, 1.0, "the same"),
        (0.9, None, None, "no interval"),
        (1.0, None, None, "no interval"),
    ],
)
def test_a_difference_is_called_by_its_interval(ratio, low, high, verdict):
    assert Difference("a", "b", "mean_jct_s", 1.0, 1.0, ratio, low, high, ratio).verdict == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), [(1.1, 1.3, "better"), (0.7, 0.9, "worse")])
@pytest.mark.parametrize("metric", ["goodput", "fairness"])
def test_more_goodput_and_fairness_is_better(metric, low, high, verdict):
    assert Difference("a", "b", metric, 1.0, 1.0, (low + high) / 2, low, high, 1.0).verdict == verdict


POLICIES = {"fifo": load_policy("fifo"), "srtf": load_policy("srtf")}


@pytest.mark.slow
def test_a_generated_trace_is_compared_over_seeds():
    cluster = load_cluster("1x2x4:H100")
    source = TraceSource("generate:jobs=60,load=1.5,durations=exponential:1h,sizes=powers-of-two")
    found = compare(source, cluster, POLICIES, Setting(), seeds=6)
    assert (found.method, found.seeds, len(found.results)) == ("seeds", 6, 6)
    assert [one.metric for one in found.differences] == list(COMPARED)
    jcts = np.array([[one.mean_jct_s for one in row] for row in found.results])
    assert len(set(jcts[:, 0])) == 6, "every seed plays another trace"
    ratios = jcts[:, 1] / jcts[:, 0]
    mean_jct = found.differences[0]
    assert mean_jct.ratio == pytest.approx(np.median(ratios))
    assert (mean_jct.against_value, mean_jct.value) == pytest.approx(tuple(np.median(jcts, axis=0)))
    assert (mean_jct.low, mean_jct.high) == pytest.approx((ratios.min(), ratios.max()))
    assert mean_jct.mean_ratio == pytest.approx(np.exp(np.log(ratios).mean()))
    assert mean_jct.verdict == "better"


@pytest.mark.slow
def test_ten_traces_are_generated_unless_seeds_are_given():
    source = TraceSource("generate:jobs=10,load=0.5,durations=fixed:1m")
    found = compare(source, load_cluster("1x1x4:H100"), POLICIES, Setting(network="off"))
    assert (found.seeds, len(found.results)) == (10, 10)
    assert found.how == (
        "medians of 10 generated traces, the same for every policy; a change is the median of the changes trace by "
        "trace, not the ratio of the two columns; intervals of the median"
    )


def test_a_median_of_no_difference_is_noise_where_some_traces_differ():
    assert Difference("a", "b", "mean_jct_s", 1.0, 1.0, 1.0, 1.0, 1.0, 0.9).verdict == "within noise"


@pytest.mark.parametrize(("seeds", "how"), [(1, "one trace"), (5, "medians of 5 generated traces")])
def test_fewer_than_six_seeds_have_no_intervals_and_the_comparison_says_so(seeds, how):
    source = TraceSource("generate:jobs=10,load=0.5,durations=fixed:1m")
    found = compare(source, load_cluster("1x1x4:H100"), POLICIES, Setting(network="off"), seeds=seeds)
    assert {one.verdict for one in found.differences} == {"no interval"}
    assert found.how.startswith(f"{how}, the same for every policy; ")
    assert found.how.endswith("; no intervals: they need --seeds 6 or more")
    assert ("not the ratio of the two columns" in found.how) == (seeds > 1)


@pytest.mark.parametrize(
    ("mean_ratio", "uneven"), [(0.9995, False), (0.99, True), (1.0105, False), (1.02, True)]
)
def test_a_mean_outside_the_interval_by_less_than_what_is_printed_is_not_uneven(mean_ratio, uneven):
    assert Difference("a", "b", "mean_jct_s", 1.0, 1.0, 1.0, 1.0, 1.01, mean_ratio).uneven is uneven


@pytest.mark.slow
def test_a_mean_outside_the_interval_of_the_median_is_reported():
    """Jobs of the Philly sizes wait on few traces; on those the last job ends much earlier under srtf."""
    source = TraceSource("generate:jobs=100,load=0.8")
    found = compare(source, load_cluster("1x2x8:H100"), POLICIES, Setting(network="off"), seeds=20)
    (makespan,) = (one for one in found.differences if one.metric == "makespan_s")
    assert makespan.mean_ratio < makespan.low <= makespan.ratio == 1.0
    (warning,) = (text for text in found.warnings if "makespan" in text)
    change = f"{100 * (makespan.mean_ratio - 1):+.1f} %"
    assert warning.startswith(f"srtf, makespan: the mean change, {change}, is outside the interval")


def test_failures_vary_with_the_seed_and_are_the_same_for_every_policy(monkeypatch, tmp_path):
    """Nothing else is random here: every job names its model."""
    path = tmp_path / "jobs.csv"
    rows = [f"{i},{i * 60},2,{600 + i % 7 * 300},resnet50" for i in range(40)]
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s,model", *rows]) + "\n")
    played = []

    def recorded(*args, **kwargs):
        run = simulate(*args, **kwargs)
        played.append(run.setting.faults.tolist())
        return run

    monkeypatch.setattr(comparison, "simulate", recorded)
    setting = Setting(network="off", seed=2, fault_spec=parse_faults("mtbf=3h,mttr=20m,seed=5"))
    found = compare(TraceSource(str(path)), load_cluster("1x2x4:H100"), POLICIES, setting, seeds=3)
    assert (found.method, found.seeds) == ("resampled", 3)
    assert found.fault_seeds == (7, 8, 9)
    by_seed = [played[:2], played[2:4], played[4:]]
    assert all(fifo and fifo == srtf for fifo, srtf in by_seed)
    assert by_seed[0] != by_seed[1] != by_seed[2]
    assert len({row[0].mean_jct_s for row in found.results}) == 3


def test_drains_are_planned_and_not_random(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,num_gpu,duration_s\na,0,4,100\nb,0,4,100\n")
    setting = Setting(network="off", fault_spec=parse_faults("drain=r0-m0@10s+1h"))
    found = compare(TraceSource(str(path)), load_cluster("1x1x4:H100"), POLICIES, setting, seeds=3)
    assert (found.method, found.fault_seeds) == ("resampled", ())
    assert found.results[0][0].makespan_s == 10 + 3600 + 100


@pytest.mark.slow
def test_a_comparison_keeps_no_run(monkeypatch):
    """A run of a large trace is tens of megabytes; its figures are what a comparison needs."""
    alive: list[weakref.ref] = []
    most = 0

    def watched(*args, **kwargs):
        nonlocal most
        gc.collect()
        most = max(most, sum(ref() is not None for ref in alive))
        run = simulate(*args, **kwargs)
        alive.append(weakref.ref(run))
        return run

    monkeypatch.setattr(comparison, "simulate", watched)
    source = TraceSource("generate:jobs=10,load=0.5,durations=fixed:1m")
    compare(source, load_cluster("1x1x4:H100"), POLICIES, Setting(network="off"), seeds=3)
    assert (len(alive), most) == (6, 0)


def written(path: Path, rows: list[str]) -> TraceSource:
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s,model", *rows]) + "\n")
    return TraceSource(str(path))


@pytest.mark.slow
def test_a_trace_from_a_file_is_resampled_and_keeps_its_own_figures(tmp_path):
    source = written(tmp_path / "jobs.csv", [f"{i},{i},4,{1 + i % 7 * 30},resnet50" for i in range(40)])
    found = compare(source, load_cluster("1x1x4:H100"), POLICIES, Setting())
    assert (found.method, found.seeds, len(found.results)) == ("resampled", 20, 20)
    for one in found.differences:
        fifo, srtf = (getattr(summary, one.metric) for summary in found.results[0])
        assert (one.against_value, one.value, one.ratio) == pytest.approx((fifo, srtf, srtf / fifo))
        ratios = [getattr(row[1], one.metric) / getattr(row[0], one.metric) for row in found.results]
        assert (one.low, one.high) == pytest.approx((min(ratios), max(ratios)))
    mean = found.differences[0]
    assert mean.low < mean.ratio < mean.high
    assert (
        "intervals are of the median over traces like it (19 traces resampled from it in blocks of jobs)"
        in found.how
    )
    assert found.warnings == ()


@pytest.mark.slow
def test_what_else_is_random_in_a_resampled_trace_is_named(tmp_path):
    source = written(tmp_path / "jobs.csv", [f"{i},{i},1,{60 + i}," for i in range(25)])
    setting = Setting(estimate_error=0.5, fault_spec=parse_faults("mtbf=3h,mttr=20m"))
    found = compare(source, load_cluster("1x1x4:H100"), POLICIES, setting)
    also = "models of jobs that name none and errors of remaining times and failures of machines"
    assert f"in blocks of jobs, each with its own {also})" in found.how


@pytest.mark.slow
def test_jobs_that_are_alike_over_long_stretches_are_reported(tmp_path):
    """The first half of the jobs is short, the second long: no block of a twentieth shows both."""
    rows = [f"{i},{60 * i},1,{60 if i < 100 else 600},resnet50" for i in range(200)]
    source = written(tmp_path / "jobs.csv", rows)
    cluster = load_cluster("1x1x4:H100")
    (warning,) = compare(source, cluster, POLICIES, Setting(network="off")).warnings
    assert warning.startswith("jobs are alike over longer stretches than the blocks")
    assert compare(source, cluster, POLICIES, Setting(network="off"), seeds=2).warnings == ()


@pytest.mark.slow
def test_a_resampled_trace_may_hold_no_job_that_can_start(tmp_path):
    """Of two jobs one is larger than the cluster: one resampled trace in four has only that one."""
    source = written(tmp_path / "jobs.csv", ["a,0,1,60,resnet50", "b,1,8,60,resnet50"])
    found = compare(source, load_cluster("1x1x4:H100"), POLICIES, Setting())
    assert 0 in {row[0].finished for row in found.results}
    assert {one.verdict for one in found.differences} == {"the same"}


def test_a_metric_that_is_zero_under_one_policy_has_no_ratio_and_the_comparison_says_so(tmp_path):
    """One device of each machine is left for c: under preferred it starts there, under required it waits 100 s."""
    source = written(
        tmp_path / "jobs.csv", [f"{name},0,{gpus},100,resnet50" for name, gpus in ("a3", "b3", "c2")]
    )
    policies = {name: load_policy(name) for name in ("preferred", "required")}
    found = compare(source, load_cluster("1x2x4:H100"), policies, Setting(network="off"), seeds=1)
    assert [row.mean_wait_s for row in found.results[0]] == [0.0, pytest.approx(100 / 3)]
    listed = {one.metric: one.ratio for one in found.differences}
    assert listed["makespan_s"] == 2.0
    assert listed["mean_comm_s"] == 1.0, "both are 0"
    assert "mean_wait_s" not in listed
    assert found.warnings == (
        "required: no ratio, since one of the two is 0 on a trace: mean wait, p95 wait, p99 wait",
    )


def test_a_comparison_is_a_data_frame_with_one_row_per_run():
    source = TraceSource("generate:jobs=10,load=0.5,durations=fixed:1m")
    setting = Setting(network="off", seed=3, fault_spec=parse_faults("mtbf=30d,mttr=1h,seed=5"))
    found = compare(source, load_cluster("1x1x4:H100"), POLICIES, setting, seeds=2)
    frame = found.frame()
    assert frame["policy"].to_list() == ["fifo", "srtf"] * 2
    assert frame["round"].to_list() == [0, 0, 1, 1]
    assert frame["fault_seed"].to_list() == [8, 8, 9, 9]
    assert frame["mean_jct_s"].to_list() == [one.mean_jct_s for row in found.results for one in row]
    assert frame["tier_share_machine"].to_list() == [
        one.tier_share["machine"] for row in found.results for one in row
    ]
    assert frame["unfinished"].to_list() == [0] * 4
