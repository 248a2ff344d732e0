"""A report begins with two sentences, and names the few jobs that make a makespan."""

from __future__ import annotations

import dataclasses

import pytest

from berth.report.verdict import idle, tail, verdict
from berth.schedule import load_policy
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, jobs


def run_of(rows, policy="fifo"):
    return simulate(jobs(rows), cluster([4]), load_policy(policy), Setting(network="off"), name=policy)


SHORT = [(10 * at, 1, 100) for at in range(20)]


@pytest.fixture(scope="module")
def summary():
    return summarise(run_of(SHORT))


def test_the_soonest_policy_is_named_with_its_distance_to_the_next_and_the_last(summary):
    slow = dataclasses.replace(summary, mean_jct_s=4 * summary.mean_jct_s, p99_jct_s=9 * summary.p99_jct_s)
    middle = dataclasses.replace(summary, mean_jct_s=2 * summary.mean_jct_s)
    said = verdict([slow, summary, middle], ["fifo", "mine", "easy"])
    assert len(said) == 2
    assert said[0].startswith("mine completes jobs soonest, after ")
    assert said[0].endswith(": 50% less than easy and 75% less than fifo.")
    assert "under fifo longer than" in said[1]


def test_equal_policies_and_a_single_one_get_no_winner(summary):
    assert verdict([summary, summary], ["a", "b"])[0].startswith("The policies do not differ")
    assert verdict([summary], ["a"])[0].startswith("Under a a job completes after ")


def test_a_policy_that_leaves_jobs_unfinished_never_wins(summary):
    stuck = dataclasses.replace(summary, unfinished=("j3",), mean_jct_s=1.0)
    said = verdict([stuck, summary], ["stuck", "whole"])
    assert said[-1] == "Under stuck 1 job never finishes."
    assert said[0].startswith("Under whole")


def test_the_few_jobs_that_make_the_makespan_are_named():
    run = run_of([*SHORT, (5, 1, 90_000), (6, 1, 80_000)])
    said = tail(run, "fifo")
    assert said.startswith("Under fifo 2 jobs make the makespan of 1d1h: without ")
    ends = dict(zip(run.trace.job_ids, run.records["end_s"].tolist(), strict=True))
    late = sorted(ends, key=ends.get)[-2:]
    assert all(job in said for job in late)
    assert tail(run_of(SHORT), "fifo") is None


def test_policies_that_make_no_job_wait_are_said_to_be_idle(summary):
    free = summarise(run_of([(1000 * at, 1, 100) for at in range(20)]))
    assert idle([free, free]).startswith("No job waits under any policy")
    assert idle([free, summary]) is None  # one of them has jobs that wait
    assert idle([free]) is None
    assert idle([free, dataclasses.replace(free, unfinished=("j3",))]) is None
