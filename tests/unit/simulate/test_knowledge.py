"""The estimates of durations that policies get, and the jobs that they may evict."""

from __future__ import annotations

import numpy as np
import pytest

from berth.schedule.policies.registry import load_policy
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs
from berth.workload.trace import Trace

LEARNED = Setting(network="off", estimates="learned", eviction_s=0.0, eviction_large_s=0.0)
NONE = Setting(network="off", estimates="none", eviction_s=0.0, eviction_large_s=0.0)


def by_users(rows, **more):
    """A trace from (arrival, GPUs, duration, user)."""
    columns = {
        "job_id": [f"j{number}" for number in range(len(rows))],
        "submit_s": [float(row[0]) for row in rows],
        "num_gpu": [row[1] for row in rows],
        "duration_s": [float(row[2]) for row in rows],
        "user": [row[3] for row in rows],
    }
    return Trace.from_columns(columns | more, source="test")


def starts(trace, policy, setting):
    return simulate(trace, cluster([1]), load_policy(policy), setting).records["first_start_s"]


@pytest.mark.parametrize("policy", ["sjf", "srtf", "berth", "lwf"])
def test_jobs_of_a_user_with_short_ones_go_first_once_some_have_ended(policy):
    past = [(1000.0 * k, 1, 900 if k % 2 else 9, "long" if k % 2 else "short") for k in range(12)]
    waiting = [(12000, 1, 50, "long"), (12001, 1, 5000, "long"), (12002, 1, 10, "short")]
    first = starts(by_users(past + waiting), policy, LEARNED)
    assert first[14] < first[13]  # though it came later; j12 runs when both come


@pytest.mark.parametrize("policy", ["berth", "srtf", "tiresias", "themis", "easy", "dally:mode=manual"])
@pytest.mark.parametrize("setting", [LEARNED, NONE])
def test_decisions_until_the_first_end_do_not_depend_on_durations(policy, setting):
    """The truth must not leak: nothing differs before a job has ended."""
    rows = [(10 * k, 1 + k % 3, 0, "u") for k in range(12)]
    runs = []
    for seed in (0, 1):
        durations = np.random.default_rng(seed).uniform(5000, 9000, len(rows))
        trace = by_users(
            [
                (at, gpus, duration, user)
                for (at, gpus, _, user), duration in zip(rows, durations, strict=True)
            ]
        )
        run = simulate(
            trace,
            cluster([4]),
            load_policy(policy),
            Setting(network="off", estimates=setting.estimates, log=True),
        )
        runs.append(run.log[run.log["time"] < 5000.0][["time", "job", "what"]].tolist())
    assert runs[0] == runs[1]


def test_an_estimate_of_the_user_counts_as_far_as_earlier_ones_were_right():
    honest = [(5000 * k, 1, 100 * 2**k, "honest") for k in range(8)]
    wild = [(5000 * k + 1, 1, 100 * 2 ** (7 - k), "wild") for k in range(8)]
    rows = sorted(honest + wild)
    told = [row[2] if row[3] == "honest" else 100 * 2 ** ((k * 3) % 8) for k, row in enumerate(rows)]
    trace = by_users(rows, estimate_s=[float(value) for value in told])
    run = simulate(trace, cluster([4]), load_policy("fit-first"), LEARNED)
    trust = {user: run.world.history[int(run.records["trust_class"][k])] for k, (*_, user) in enumerate(rows)}
    assert trust["honest"]["variance"] == pytest.approx(0.0, abs=1e-9)
    assert trust["wild"]["variance"] > 1.0
    last_honest, last_wild = run.records[-2], run.records[-1]
    assert last_honest["spread_row"] < last_wild["spread_row"]


@pytest.mark.parametrize(
    "policy",
    ["srtf", "tiresias", "gittins", "gandiva", "dally", "berth", "berth:order=las", "optimus", "themis"],
)
def test_a_job_that_cant_be_preempted_keeps_its_place(policy):
    rows = [(10 * k, 1 + k % 4, 4000 - 300 * k, ("vgg16", "bert-large")[k % 2]) for k in range(12)]
    machines = cluster([[4, 4], [4, 4]])
    assert (
        summarise(simulate(jobs(rows), machines, load_policy("gandiva"), Setting(congestion=20.0))).evictions
        > 0
    )
    setting = Setting(congestion=20.0, preemptible=0.0)
    figures = summarise(simulate(jobs(rows), machines, load_policy(policy), setting))
    assert (figures.evictions, figures.moves) == (0, 0)
    assert figures.finished == len(rows)


def test_a_trace_says_which_jobs_can_be_preempted():
    rows = [(0, 1, 1000, "u"), (0, 1, 900, "u"), (1, 1, 10, "u"), (2, 1, 11, "u")]
    run = simulate(
        by_users(rows, preemptible=[0, 1, None, None]),
        cluster([2]),
        load_policy("srtf"),
        Setting(network="off"),
    )
    assert run.records["evictions"].tolist() == [0, 1, 0, 0]


def test_a_share_of_the_jobs_can_be_preempted_and_the_same_ones_under_every_policy():
    rows = [(k, 1, 100) for k in range(400)]
    setting = Setting(network="off", preemptible=0.3)
    fixed = [
        simulate(jobs(rows), cluster([4]), load_policy(name), setting).records["preemptible"]
        for name in ("fifo", "srtf")
    ]
    assert np.array_equal(*fixed)
    assert fixed[0].mean() == pytest.approx(0.3, abs=0.07)
