"""The summary of a run against the same figures computed from a plain engine, and prices and tiers by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from plain_engine import Discipline, PlainEngine

from berth.report.simulation import METRICS, best
from berth.schedule.policies.registry import load_policy
from berth.simulate.metrics import Summary, summarise
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES


def random_rows(seed: int) -> list[tuple[float, int, float]]:
    dice = np.random.default_rng(seed)
    arrivals = np.sort(dice.integers(100, 1100, 30))
    return [(float(at), int(dice.choice([1, 2, 3, 8])), float(dice.integers(10, 300))) for at in arrivals]


def percentile(values: list[float], rank: float) -> float:
    """Between the two nearest values, in proportion."""
    ordered = sorted(values)
    at = rank / 100 * (len(ordered) - 1)
    below, above = ordered[math.floor(at)], ordered[math.ceil(at)]
    return below + (above - below) * (at - math.floor(at))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("policy", "discipline"),
    [
        ("fifo", Discipline(blocked="stop")),
        ("srtf", Discipline(order=lambda job, now: job.left, preempts=True)),
    ],
)
def test_every_figure_of_the_summary_is_that_of_the_plain_engine(policy, discipline, seed):
    rows, machines = random_rows(seed), [8, 4]
    if policy == "srtf":
        machines = [12]
    plain = PlainEngine(rows, machines, discipline, restore=(30.0, 70.0)).run()
    setting = Setting(network="off", eviction_s=30.0, eviction_large_s=70.0)
    found = summarise(simulate(jobs(rows), cluster(machines), load_policy(policy), setting))
    jct = [job.end - job.arrival for job in plain.jobs]
    waits = [job.waited for job in plain.jobs]
    first, last = rows[0][0], max(job.end for job in plain.jobs)
    there = 12 * (last - first)
    assert (found.jobs, found.finished, found.unfinished, found.never_schedulable) == (30, 30, (), 0)
    assert found.mean_jct_s == pytest.approx(sum(jct) / 30, rel=1e-12)
    assert [found.p50_jct_s, found.p95_jct_s, found.p99_jct_s] == pytest.approx(
        [percentile(jct, rank) for rank in (50, 95, 99)], rel=1e-12
    )
    assert found.makespan_s == last - first
    assert found.mean_wait_s == pytest.approx(sum(waits) / 30, rel=1e-12)
    assert found.p99_wait_s == pytest.approx(percentile(waits, 99), rel=1e-12)
    assert found.gpu_utilisation == pytest.approx(sum(job.attained for job in plain.jobs) / there, rel=1e-12)
    assert found.fragmentation == pytest.approx(plain.idle_wanted / there, rel=1e-12)
    assert (found.evictions, found.moves) == (plain.evictions, 0)
    assert found.lost_gpu_s == sum(job.lost for job in plain.jobs)
    assert found.exposed_comm_gpu_s == 0.0


def figures(machines: object, rows: list, policy: str = "fit-first", **setting: object) -> Summary:
    chosen = Setting(**{"network": "off", "eviction_s": 0.0, **setting})
    return summarise(simulate(jobs(rows), cluster(machines), EXERCISES[policy], chosen))


def test_fragmentation_is_what_idles_while_a_job_waits_that_asks_for_no_more():
    # One device of each machine is free; j2 asks for two of one machine, until j0 ends at 100 s.
    found = figures([4, 4], [(0, 3, 100), (0, 3, 150), (0, 2, 50)], "nearest-only")
    assert found.fragmentation == 2 * 100 / (8 * 150)


def test_what_idles_while_no_job_asks_for_it_does_not_count_as_fragmentation():
    assert figures([4, 4], [(0, 3, 100), (0, 3, 100)]).fragmentation == 0.0
    # six devices are free, and eight are asked for
    assert figures([8], [(0, 2, 100), (0, 8, 100)]).fragmentation == 0.0


def test_the_first_submission_is_where_time_begins():
    found = figures([4], [(1000, 4, 100), (1050, 4, 100)])
    assert (found.makespan_s, found.mean_jct_s, found.mean_wait_s) == (200.0, (100 + 150) / 2, 25.0)
    assert found.gpu_utilisation == 1.0


def test_slowdown_fairness_goodput_and_the_tail_of_waits_by_hand():
    # Both need the whole machine for 100 s: completion after 100 and 200 s, waits of 0 and 100 s.
    found = figures([4], [(0, 4, 100), (0, 4, 100)])
    assert (found.mean_slowdown, found.p95_slowdown) == pytest.approx((1.5, 1 + 0.95))
    assert found.p95_wait_s == pytest.approx(95.0)
    assert found.fairness == pytest.approx((1 + 0.5) ** 2 / (2 * (1 + 0.25)))
    assert found.goodput == 1.0
    # of 8 devices for 100 s, 4 are needed for 100 s and 4 for 50 s
    found = figures([8], [(0, 4, 100), (0, 4, 50)])
    assert (found.goodput, found.fairness, found.mean_slowdown) == (600 / 800, 1.0, 1.0)


def test_a_job_of_a_second_counts_as_ten_in_slowdowns():
    found = figures([4], [(0, 4, 100), (0, 4, 1)])
    assert found.mean_slowdown == pytest.approx((1 + 101 / 10) / 2)


def test_goodput_leaves_out_what_evictions_and_failures_destroy():
    # The machine fails after 50 s for 10 s, and without a checkpoint the job starts again: held 50 + 100 of 160 s.
    rule = {"faults": faults([(50, 0, "fail"), (60, 0, "repair")]), "checkpoint_s": 0.0}
    found = figures([4], [(0, 4, 100)], **rule)
    assert found.makespan_s == 160.0
    assert found.gpu_utilisation == pytest.approx(1.0)
    assert found.goodput == pytest.approx(100 / 150)


def test_communication_of_a_job_is_what_its_iterations_are_longer_than_their_computation():
    run = simulate(
        jobs([(0, 8, 100, "vgg16"), (0, 1, 100, "vgg16")]),
        cluster([[4, 4], [4]]),
        EXERCISES["fit-first"],
        Setting(network="static", congestion=5.0),
    )
    gang, single = run.records["compute_share"]
    found = summarise(run)
    assert single == 1.0
    assert 0.0 < gang < 1.0
    assert found.mean_comm_s == pytest.approx(100 * (1 - gang) / 2)
    assert found.exposed_comm_gpu_s == pytest.approx(8 * 100 * (1 - gang))


def test_single_devices_are_at_no_tier():
    found = figures([[4, 4], [4]], [(0, 1, 500), (0, 4, 100), (0, 6, 50), (0, 1, 900)])
    shares = found.tier_share
    # j1 is inside one machine; j2 has six devices of what is left, on several
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["machine"] == pytest.approx(400 / (400 + 300))
    assert set(shares) == {"machine", "rack", "network"}


def test_a_run_of_single_devices_has_no_share_at_any_tier():
    assert set(figures([4], [(0, 1, 10), (0, 1, 20)]).tier_share.values()) == {0.0}


def test_dollars_are_those_of_the_whole_cluster_until_the_last_end():
    rows, machines = [(0, 2, 1800), (600, 2, 1800)], cluster([{"H100": 4}])
    priced = replace(
        machines, device_types=tuple(replace(kind, usd_per_hour=3.0) for kind in machines.device_types)
    )
    run = simulate(jobs(rows), priced, EXERCISES["fit-first"], Setting(network="off"))
    assert summarise(run).cost_usd == pytest.approx(4 * 3.0 * 2400 / 3600)


def test_jobs_that_can_never_start_are_counted_apart():
    rows = [(0, 2, 100), (0, 99, 100), (0, 4, 100, None, "x")]
    found = figures([8], rows, quotas={"x": 2})
    assert (found.jobs, found.finished, found.never_schedulable) == (3, 1, 2)
    assert found.mean_jct_s == 100.0


def test_of_jobs_that_never_end_only_what_they_held_counts():
    # m0 stays down from 30 s on; j0 has held two devices for 30 s and waits forever, j1 ends at 50 s.
    found = figures([2, 1], [(0, 2, 100), (0, 1, 50)], faults=faults([(30, 0, "fail")]))
    assert found.unfinished == ("j0",)
    assert (found.finished, found.mean_jct_s, found.mean_wait_s) == (1, 50.0, 0.0)
    assert found.evictions == 1
    assert found.gpu_utilisation == pytest.approx((60 + 50) / (3 * 50 - 2 * 20))


def test_nothing_at_all_gives_figures_too():
    found = figures([4], [(0, 9, 100)])
    assert (found.finished, found.never_schedulable) == (0, 1)
    assert (found.mean_jct_s, found.p99_jct_s, found.makespan_s, found.gpu_utilisation) == (
        0.0,
        0.0,
        0.0,
        0.0,
    )


def test_plain_data_names_the_unfinished_jobs_in_a_list():
    found = figures([2, 1], [(0, 2, 100), (0, 1, 50)], faults=faults([(30, 0, "fail")])).as_json()
    assert found["unfinished"] == ["j0"]
    assert found["tier_share"].keys() == {"machine", "network"}


def test_the_best_of_a_row_has_the_least_or_the_most_of_what_is_judged():
    machines, rows = cluster([4]), [(0.0, 4, 100.0), (1.0, 1, 10.0), (2.0, 4, 50.0)]
    setting = Setting(network="off")
    run = summarise(simulate(jobs(rows), machines, load_policy("fifo"), setting))
    other = replace(run, fairness=run.fairness / 2, goodput=run.goodput / 2, gpu_utilisation=0.1, moves=7)
    marks = {metric.name: best(metric, [run, other]) for metric in METRICS}
    assert marks["fairness (Jain)"] == marks["goodput"] == [True, False]
    assert marks["GPU use"] == marks["moves"] == [False, False]
    assert best(METRICS[1], [replace(run, mean_jct_s=1e6), run]) == [False, True]
