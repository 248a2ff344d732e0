"""Tiresias against its rule written a second time, naively: queues as lists, walked whole at every event."""

from __future__ import annotations

import math

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.tiresias import Tiresias
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.workload.reading import read_trace
from berth.workload.trace import Trace

COUNTED = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)
LIMITS = (3250, 7200)


class Job:
    def __init__(self, row, arrival, gpus, seconds):
        self.row, self.arrival, self.gpus, self.seconds = row, arrival, gpus, seconds
        self.ran, self.queue, self.runs, self.end = 0, 0, False, None


def naive(trace, devices, late=False, by_arrival=True):
    """Ends of all jobs, in whole seconds. `late`: demotions are looked for as Tiresias' own program does."""
    columns = zip(trace.submit_s, trace.num_gpu, trace.duration_s, strict=True)
    jobs = [Job(row, int(a), int(g), int(d)) for row, (a, g, d) in enumerate(columns)]
    coming, queues, now = list(jobs), [[], [], []], 0
    while coming or any(queues):
        live = sorted((job for queue in queues for job in queue), key=lambda job: job.row)
        running = [job for job in live if job.runs]
        then = min([job.arrival for job in coming[:1]] + [now + job.seconds - job.ran for job in running])
        then = min([then] + [now + sinks_in(job, late) for job in running if job.queue < 2])
        for job in running:
            job.ran += then - now
        now = then
        for job in running:
            if job.ran == job.seconds:
                queues[job.queue].remove(job)
                job.end = now
        while coming and coming[0].arrival == now:
            queues[0].append(coming.pop(0))
        for job in running:
            if job.end is None and job.queue < 2 and job.ran * job.gpus >= LIMITS[job.queue]:
                queues[job.queue].remove(job)
                job.queue += 1
                queues[job.queue].append(job)
        walk(queues, devices, by_arrival)
    return [job.end for job in jobs]


def sinks_in(job, late):
    if late:  # seconds where GPU-seconds are meant, and whole ones
        return (LIMITS[job.queue] - job.ran) // job.gpus
    return math.ceil((LIMITS[job.queue] - job.ran * job.gpus) / job.gpus)


def walk(queues, devices, by_arrival):
    """Who fits runs; in every queue those who wait then stand behind those who run."""
    for queue in queues:
        evicted = []
        for job in queue:
            ran, job.runs = job.runs, job.gpus <= devices
            devices -= job.gpus if job.runs else 0
            if ran and not job.runs:
                evicted.append(job)
        waiting = [job for job in queue if not job.runs]
        places = [place for place, job in enumerate(waiting) if job in evicted]
        if by_arrival:
            for place, job in zip(places, sorted(evicted, key=lambda job: job.row), strict=True):
                waiting[place] = job
        queue[:] = [job for job in queue if job.runs] + waiting


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_rule_is_the_naive_one(seed):
    dice = np.random.default_rng(seed)
    columns = {
        "job_id": [str(i) for i in range(60)],
        "submit_s": np.sort(dice.choice(20_000, 60, replace=False)).astype(float),
        "num_gpu": dice.choice([1, 2, 4, 8], 60),
        "duration_s": dice.integers(100, 5_000, 60).astype(float),
    }
    trace = Trace.from_columns(columns, source="test")
    run = simulate(trace, load_cluster("16"), Tiresias(3250, 7200), COUNTED)
    assert np.abs(run.records["end_s"] - naive(trace, 16)).max() < 60  # whole seconds add up


def test_the_difference_to_the_published_program_is_its_late_demotion(shared_traces):
    trace = read_trace(shared_traces / "philly" / "philly480.csv.xz")
    ours = summarise(simulate(trace, load_cluster("160"), Tiresias(), COUNTED))
    assert mean_jct(trace, naive(trace, 160)) == pytest.approx(ours.mean_jct_s, abs=0.01)
    theirs = naive(trace, 160, late=True, by_arrival=False)
    assert mean_jct(trace, theirs) == pytest.approx(184694.87, abs=0.01)
    assert max(theirs) == 2906086


def mean_jct(trace, ends):
    return float(np.mean(np.array(ends) - trace.submit_s))
