"""Figures of runs that can be computed by hand."""

from __future__ import annotations

from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES


def figures(machines, rows, down=(), **setting):
    """The summary of a run without a network."""
    chosen = Setting(network="off", eviction_s=0.0, faults=faults(list(down)), **setting)
    return summarise(simulate(jobs(rows), cluster(machines), EXERCISES["fit-first"], chosen))


def test_gpu_use_is_what_was_held_of_what_was_there():
    assert figures([4], [(0, 2, 100), (0, 1, 50)]).gpu_utilisation == (200 + 50) / 400


def test_a_machine_that_is_down_is_not_there():
    # m1 is down from 20 to 60 of 100 s: 2 x 40 device-seconds less.
    found = figures([2, 2], [(0, 2, 100)], [(20, 1, "fail"), (60, 1, "repair")])
    assert found.gpu_utilisation == 200 / (400 - 80)


def test_outages_count_once_and_only_within_the_run():
    # m1: two failures overlap from 20 to 60; from 90 on it stays down beyond the end at 100.
    down = [(20, 1, "fail"), (30, 1, "fail"), (40, 1, "repair"), (60, 1, "repair")]
    down += [(90, 1, "fail"), (500, 1, "repair")]
    found = figures([2, 2], [(0, 2, 100)], down)
    assert found.gpu_utilisation == 200 / (400 - 80 - 20)


def test_a_drained_machine_is_there():
    found = figures([2, 2], [(0, 2, 100)], [(20, 1, "drain"), (60, 1, "undrain")])
    assert found.gpu_utilisation == 0.5


def test_what_jobs_held_that_never_finish_counts():
    # m0 fails at 50 and stays down: j0 lost its place after 50 s on four devices; m1 goes on to 80.
    found = figures([4, 1], [(0, 4, 100), (0, 1, 80)], [(50, 0, "fail")])
    assert found.unfinished == ("j0",)
    assert found.gpu_utilisation == (4 * 50 + 80) / (5 * 80 - 4 * 30)
