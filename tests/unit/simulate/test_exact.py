"""With a network that costs nothing, on a flat pool, the answers are counted, and known."""

from __future__ import annotations

import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.workload.reading import read_trace

COUNTED = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)
# Mean completion time and makespan when GPUs are only counted: placement does not matter, moving costs nothing. Two
# programs written independently of berth and of each other (plain event loops in Python) agree on them to 0.01 s.
# fifo: strict head of line; srtf: at every event by remaining time, skipping what does not fit; srsf: the same by
# remaining time x GPUs; ties by submission, then by job id. Traces: one virtual cluster's 480 jobs and one week's
# 12,751 jobs of Microsoft's Philly trace, CC-BY-4.0.
KNOWN = [
    ("philly480", "160", load_policy("fifo"), 319335.59, 3102082),
    ("philly480", "160", load_policy("srtf"), 157219.67, 3150513),
    ("philly480", "160", load_policy("srsf"), 156684.14, 3127600),
    ("philly1w", "512", load_policy("fifo"), 14416.56, 2408433),
    ("philly1w", "512", load_policy("srtf"), 7787.80, 2412864),
    ("philly1w", "512", load_policy("srsf"), 7733.88, 2384634),
]


@pytest.mark.parametrize(("trace", "cluster", "policy", "jct", "makespan"), KNOWN)
def test_counting_on_a_flat_pool_gives_known_answers(shared_traces, trace, cluster, policy, jct, makespan):
    jobs = read_trace(shared_traces / "philly" / f"{trace}.csv.xz")
    summary = summarise(simulate(jobs, load_cluster(cluster), policy, COUNTED))
    assert summary.mean_jct_s == pytest.approx(jct, abs=0.01)
    assert summary.makespan_s == pytest.approx(makespan, abs=0.5)
    assert summary.finished == summary.jobs
