"""Intervals of known cases, and which method is taken when."""

from __future__ import annotations

import gc
import weakref

import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate import comparison
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
        (0.9, None, None, "better"),
        (1.0, None, None, "the same"),
    ],
)
def test_a_difference_is_called_by_its_interval(ratio, low, high, verdict):
    assert Difference("a", "b", "mean_jct_s", 1.0, 1.0, ratio, low, high).verdict == verdict


POLICIES = {"fifo": load_policy("fifo"), "srtf": load_policy("srtf")}


def test_a_generated_trace_is_compared_over_seeds():
    cluster = load_cluster("1x2x4:H100")
    source = TraceSource("generate:jobs=60,load=1.5,durations=exponential:1h,sizes=powers-of-two")
    found = compare(source, cluster, POLICIES, Setting(), seeds=3)
    assert (found.method, found.seeds, len(found.results)) == ("seeds", 3, 3)
    assert [one.metric for one in found.differences] == ["mean_jct_s", "p99_jct_s", "makespan_s"]
    assert found.differences[0].verdict == "better"
    jcts = {row[0].mean_jct_s for row in found.results}
    assert len(jcts) == 3, "every seed plays another trace"


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
    assert (found.method, found.seeds) == ("seeds", 3)
    assert found.how == "3 seeds of the failures of machines, the same for every policy"
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
    assert (found.method, found.fault_seeds) == ("bootstrap", ())
    assert found.results[0][0].makespan_s == 10 + 3600 + 100


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


def test_one_trace_without_chance_is_bootstrapped_and_its_makespan_has_no_interval(tmp_path):
    path = tmp_path / "jobs.csv"
    rows = [f"{i},{i},4,{1 + i % 7 * 30},resnet50" for i in range(40)]
    path.write_text("\n".join(["job_id,submit_s,num_gpu,duration_s,model", *rows]) + "\n")
    found = compare(TraceSource(str(path)), load_cluster("1x1x4:H100"), POLICIES, Setting(), seeds=5)
    assert (found.method, found.seeds) == ("bootstrap", 1)
    mean, _, makespan = found.differences
    assert mean.low < mean.ratio < mean.high
    assert (makespan.low, makespan.high) == (None, None)
