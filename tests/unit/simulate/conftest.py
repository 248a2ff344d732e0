"""One small busy run that several tests look at."""

from __future__ import annotations

import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Setting, simulate
from berth.simulate.trace_source import TraceSource


@pytest.fixture(scope="session")
def busy_run():
    """80 jobs of odd sizes under preemption on 2 racks, at more load than there is room for."""
    cluster = load_cluster("2x2x4:H100")
    trace = TraceSource("generate:jobs=80,load=1.3,sizes=odd,durations=exponential:1h").trace(cluster)
    return simulate(trace, cluster, load_policy("srtf"), Setting(log=True, congestion=5.0), name="srtf")
