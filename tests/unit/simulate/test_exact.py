"""With a network that costs nothing, on a flat pool, the answers are known: they are counted, not modelled."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.fifo import Fifo
from berth.schedule.policy import Policy, Preempt, Rules
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.workload.reading import read_trace


@dataclass(frozen=True)
class LeastLeft(Policy):
    def rules(self):
        return Rules(steady=True, preempt=Preempt.BY_ORDER)

    @staticmethod
    def order(job, now, my):
        return job.remaining


@dataclass(frozen=True)
class LeastServiceLeft(Policy):
    def rules(self):
        return Rules(steady=True, preempt=Preempt.BY_ORDER)

    @staticmethod
    def order(job, now, my):
        return job.remaining * job.gpus


COUNTED = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)
KNOWN = [
    ("philly480", "160", Fifo(), 319335.59, 3102082),
    ("philly480", "160", LeastLeft(), 157219.67, 3150513),
    ("philly480", "160", LeastServiceLeft(), 156684.14, 3127600),
    ("philly1w", "512", Fifo(), 14416.56, 2408433),
    ("philly1w", "512", LeastLeft(), 7787.80, 2412864),
    ("philly1w", "512", LeastServiceLeft(), 7733.88, 2384634),
]


@pytest.mark.parametrize(("trace", "cluster", "policy", "jct", "makespan"), KNOWN)
def test_counting_on_a_flat_pool_gives_the_known_answers(shared_traces, trace, cluster, policy, jct, makespan):
    jobs = read_trace(shared_traces / "philly" / f"{trace}.csv.xz")
    summary = summarise(simulate(jobs, load_cluster(cluster), policy, COUNTED))
    assert summary.mean_jct_s == pytest.approx(jct, abs=0.01)
    assert summary.makespan_s == pytest.approx(makespan, abs=0.5)
    assert summary.finished == summary.jobs
