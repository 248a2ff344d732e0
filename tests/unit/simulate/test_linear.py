"""What is done once is not done once per job, and nothing outlives its use."""

from __future__ import annotations

import gc
import weakref

import polars as pl
import pytest

from berth.cluster.gpus import gpu_part
from berth.simulate.jobs import best_placements
from berth.simulate.outcome import unfinished_note
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES


@pytest.fixture
def reads(monkeypatch):
    """Counts how often the column of ids is taken out of a trace."""
    counted = []
    plain = pl.DataFrame.__getitem__

    def counting(frame, key):
        if isinstance(key, str) and key == "job_id":
            counted.append(key)
        return plain(frame, key)

    monkeypatch.setattr(pl.DataFrame, "__getitem__", counting)
    return counted


def test_ids_are_read_once_however_many_jobs_are_named(reads):
    rows = [(0, 1, 10, "resnet50", "b")] * 2 + [(0, 3, 10, "resnet50", "a")] * 50
    rows += [(0, 99, 10, "resnet50", "b")] * 50 + [(1, 4, 10, "resnet50", "b")] * 50
    trace = jobs(rows)
    reads.clear()
    setting = Setting(network="off", quotas={"a": 2}, faults=faults([(0, 0, "fail")]))
    run = simulate(trace, cluster([4]), EXERCISES["fit-first"], setting)
    assert len(run.jobs.too_large) == len(run.jobs.over_quota) == 50
    assert len(run.unfinished) == 52
    assert "52 jobs" in unfinished_note(run)
    assert len(reads) == 1


@pytest.mark.slow
def test_a_cluster_is_freed_with_all_that_was_computed_from_it():
    """What-ifs make clusters; caches by identity kept thousands of them."""
    one = cluster([[{"T4": 4, "H100": 4}] * 2] * 2)
    part = gpu_part(one)
    assert best_placements(part, 8) is best_placements(part, 8)
    assert gpu_part(one) is part
    alive = [weakref.ref(one), weakref.ref(part)]
    del one, part
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
