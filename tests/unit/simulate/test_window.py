"""A run that releases jobs that have ended has the results of one that keeps them all."""

from __future__ import annotations

import dataclasses
import mmap

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.job_columns import JobColumns
from berth.schedule.policies.registry import load_policy
from berth.schedule.records import JOB, JobStatus
from berth.schedule.world import new_jobs
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.simulate.window import _BLOCK, KEPT, JobWindow
from berth.workload.trace import Trace

JOBS = 30_000
SETTING = Setting(congestion=5.0, estimate_error=0.5, seed=3)


@pytest.fixture(scope="module")
def trace():
    """Short jobs, a few that outlast most others, bursts that arrive at one moment, some that fit nowhere."""
    drawn = np.random.default_rng(7)
    submit = np.floor(np.cumsum(drawn.exponential(40.0, JOBS)))
    submit[5_000:12_000] = submit[5_000]
    durations = drawn.exponential(120.0, JOBS)
    durations[::4_999] = 400_000.0
    gpus = drawn.choice([1, 2, 3, 6, 64], JOBS, p=[0.5, 0.2, 0.2, 0.0999, 0.0001]).astype(np.int32)
    gpus[20_000:20_300] = 64  # whole blocks that are refused before they arrive
    return Trace.from_columns(
        {
            "job_id": [str(i) for i in range(JOBS)],
            "submit_s": submit,
            "num_gpu": gpus,
            "duration_s": durations,
            "user": drawn.choice(["ada", "bob", "cyn"], JOBS).tolist(),
        },
        source="drawn",
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "berth"])
def test_a_window_changes_no_result(trace, policy):
    cluster = load_cluster("2x2x4:A100")
    whole = simulate(trace, cluster, load_policy(policy), SETTING)
    window = simulate(trace, cluster, load_policy(policy), dataclasses.replace(SETTING, window_from=0))
    assert window.kept is not None
    assert whole.kept is None
    for name in KEPT:
        assert np.array_equal(window.records[name], whole.records[name]), name
    for name in window.accounts.dtype.names:
        theirs = whole.accounts[name][:, :3] if name == "tier_gpu_s" else whole.accounts[name]
        assert np.array_equal(window.accounts[name], theirs), name
    one, other = (dataclasses.replace(summarise(run), cpu_s=0.0) for run in (whole, window))
    assert one == other
    assert one.never_schedulable > 0


def test_a_run_with_a_log_keeps_every_record(trace):
    few = trace.keep(np.arange(len(trace)) < 100, "the first 100")
    run = simulate(few, load_cluster("2x2x4:A100"), load_policy("fifo"), Setting(log=True, window_from=0))
    assert run.records.dtype == JOB


def resident_kb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE // 1024


def test_memory_of_jobs_that_have_ended_is_returned():
    count = 1000 * _BLOCK
    columns = JobColumns(new_jobs(1), count)
    columns["arrival_s"] = np.arange(count, dtype=float)
    window = JobWindow(columns, 3)
    before = resident_kb()
    for arrived in range(0, count, 4096):
        window.write_until(arrived + 4096)
        window.jobs["state"][arrived : arrived + 4096] = JobStatus.DONE
        window.jobs["end_s"][arrived : arrived + 4096] = 7.0
        window.collect(arrived + 4096)
    window.close()
    assert (window.records["end_s"] == 7.0).all()
    assert (window.records["arrival_s"] == columns["arrival_s"]).all()
    kept = window.records.nbytes + window.kept_accounts.nbytes
    assert resident_kb() - before < (kept + count * JOB.itemsize // 4) // 1024
