"""Delay scheduling by its own words: holding out, learning from waits, moving others for a gain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from berth.cluster.load import load_cluster
from berth.schedule.policies.dally import efficiency, held_out
from berth.schedule.policies.registry import load_policy
from berth.schedule.policies.waits import Censored, survival_moments, timer_from
from berth.schedule.records import WAIT_STATS
from berth.schedule.world import new_jobs
from berth.simulate.engine_state import Event
from berth.simulate.run import Setting, simulate
from berth.workload.trace import Trace


def waiting(since=100.0, timers=(10.0, 20.0), floor=0, widest=2, remaining=1000.0, slow=(1.0, 1.0, 1.0)):
    job = new_jobs(1).view(np.recarray)[0]
    job.queued_since_s, job.nearest_tier, job.widest_tier, job.estimated_remaining_s = (
        since,
        floor,
        widest,
        remaining,
    )
    job.delay_timer_s[: len(timers)] = timers
    job.slowdown[: len(slow)] = slow
    return job


@pytest.mark.parametrize(
    ("now", "floor", "tier", "due"),
    [
        (100, 0, 0, 110),
        (109.9, 0, 0, 110),
        (110, 0, 1, 130),
        (130, 0, 2, math.inf),
        (100, 1, 1, 120),
        (120, 1, 2, math.inf),
        (100, 2, 2, math.inf),
    ],
)
def test_a_job_accepts_one_tier_more_after_each_timer(now, floor, tier, due):
    assert held_out(waiting(floor=floor), now, 0.0) == (tier, due)


def test_no_job_waits_longer_than_waiting_can_save():
    job = waiting(timers=(1e6, 1e6), slow=(1.0, 1.05, 1.25))
    assert held_out(job, 100.0, 1.0) == (0, pytest.approx(150))  # 1000 s x 5 %
    assert held_out(job, 150.1, 1.0) == (1, pytest.approx(350))  # and 1000 s x 20 % more


def test_efficiency_is_the_share_of_time_that_was_computation():
    job = waiting(slow=(1.0, 1.5, 2.0))
    job.compute_share, job.work_s = 0.8, 1000.0
    assert efficiency(job) == pytest.approx(0.4)  # not run yet: at the widest tier
    job.ran_s, job.estimated_remaining_s = 500.0, 600.0
    assert efficiency(job) == pytest.approx(0.8 * 400 / 500)


def offer(waits, gave_up=None, at=0.0):
    record = np.zeros(1, WAIT_STATS).view(np.recarray)[0]
    record.count, record.initial_timer_s = len(waits), 777.0
    record.wait_s[: len(waits)] = waits
    record.gave_up[: len(waits)] = gave_up or [0] * len(waits)
    record.at_s[: len(waits)] = at
    return record


IGNORE, COUNT, KAPLAN_MEIER = Censored
MIXED = ([10, 10, 10, 10, 10, 100], [0, 0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("record", "since", "censored", "timer"),
    [
        (offer([10, 20, 30, 40]), -1, COUNT, 777),  # too few
        (offer([10] * 5), 1, COUNT, 777),  # too old
        (offer([10] * 5), -1, COUNT, 10),
        (offer([10, 20, 30, 40, 50]), -1, IGNORE, 30 + np.std([10, 20, 30, 40, 50])),
        (offer(*MIXED), -1, IGNORE, 10),
        (offer(*MIXED), -1, COUNT, 25 + np.std(MIXED[0])),
        (offer([10, 10, 10, 5, 5, 5], [0, 0, 0, 1, 1, 1]), -1, KAPLAN_MEIER, 10),  # 5 s say "longer than 5"
        (offer([10] * 6, [1] * 6), -1, KAPLAN_MEIER, 1000),  # all gave up: as long as allowed
        (offer([5000] * 6), -1, COUNT, 1000),
    ],
)
def test_a_timer_is_the_mean_wait_and_one_deviation(record, since, censored, timer):
    assert timer_from(record, since, 5, 1.0, 1000.0, censored) == pytest.approx(timer)


def test_the_survival_curve_gives_the_share_of_who_gave_up_to_those_who_waited_on():
    # 1 of 4 ends at 10; one gives up at 20; of the two left one ends at 30, one at 40: weights 1/4, 3/8, 3/8
    mean, deviation = survival_moments(np.array([10.0, 20.0, 30.0, 40.0]), np.array([0, 1, 0, 0]), 100.0)
    assert mean == pytest.approx(10 / 4 + (30 + 40) * 3 / 8)
    assert deviation == pytest.approx(math.sqrt(100 / 4 + (900 + 1600) * 3 / 8 - mean**2))


def crowd(jobs, seed, gap_s):
    """A trace of gangs of unlike models; at 60 s apart they come much faster than they go."""
    dice = np.random.default_rng(seed)
    columns = {
        "job_id": [str(i) for i in range(jobs)],
        "submit_s": np.sort(dice.uniform(0, gap_s * jobs, jobs)),
        "num_gpu": dice.choice([1, 2, 3, 4, 6], jobs),
        "duration_s": dice.uniform(300, 20_000, jobs),
        "model": dice.choice(["vgg16", "resnet50"], jobs),
    }
    return Trace.from_columns(columns, source="test")


def logged(policy, gap_s=60.0, jobs=300):
    setting = Setting(network="static", congestion=20.0, log=True)
    return simulate(crowd(jobs, 1, gap_s), load_cluster("2x4x4"), load_policy(policy), setting)


def attempts(run, job):
    """(start, eviction or infinity) of each attempt."""
    mine = run.log[run.log["job"] == job]
    begun = mine["time"][mine["what"] == Event.STARTED]
    ended = mine["time"][mine["what"] == Event.EVICTED].tolist()
    return list(zip(begun, [*ended, math.inf], strict=True))


@pytest.mark.slow
def test_learned_timers_move_away_from_the_fixed_ones():
    run = logged("dally:mode=tuned,preempt=no", gap_s=1500.0)
    machine = run.world.wait_stats[:, 0]  # by demand: 1, 2, 3, 4 and 6 GPUs
    assert machine["count"].tolist() == [0, *machine["count"][1:4], 0]  # one GPU, and six, never choose
    assert all(0 < timer < 86400 and timer != 43200 for timer in machine["timer_s"][1:4])


def test_no_job_is_moved_too_soon_or_too_often():
    run = logged("dally:mode=full,min_run=10m,budget=1h")
    evicted = [attempts(run, job) for job in range(300) if run.records["evictions"][job]]
    assert evicted
    for story in evicted:
        assert all(out - begun >= 600 for begun, out in story)
        outs = [out for _, out in story]
        assert all(later - sooner >= 3600 for sooner, later in itertools.pairwise(outs))


def test_without_preemption_no_job_is_moved():
    assert logged("dally:mode=full,preempt=no").records["evictions"].sum() == 0


def test_an_evicted_job_starts_its_delay_timers_again():
    run = logged("dally:order=las,machine=30m,rack=1h")
    again = 0
    for job in range(300):
        story = attempts(run, job)
        for (_, out), (begun, _) in itertools.pairwise(story):
            entry = run.log[
                (run.log["job"] == job) & (run.log["time"] == begun) & (run.log["what"] == Event.STARTED)
            ]
            if entry["tier"][0] > run.records["nearest_tier"][job]:
                again += 1
                assert begun - out >= (1800 if run.records["nearest_tier"][job] == 0 else 3600)
    assert again
