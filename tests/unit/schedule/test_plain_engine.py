"""berth against a plain engine that was written from the documentation: every figure of every job is the same.

Cases are random, all numbers are whole, and nothing is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plain_engine import Discipline, Job, PlainEngine

from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster, faults, jobs

RESTORE = (30.0, 70.0)


def gandiva_order(job: Job, now: float) -> float:
    """A running job has had its turn a slice after its start."""
    return job.since if job.state != "running" or job.started == now else job.started + 100.0


def stretch(job: Job, now: float) -> float:
    """Highest first: the time until it ends, if it ran from now on, over the time alone."""
    return -(now - job.arrival + job.left) / max(1.0, job.work)


def left(job: Job, now: float) -> float:
    return job.left


def service_left(job: Job, now: float) -> float:
    return job.left * job.gpus


WAITING_ONLY = {
    "fifo": Discipline(blocked="stop"),
    "fit-first": Discipline(),
    "easy": Discipline(blocked="backfill"),
    "sjf": Discipline(order=left),
}
PREEMPTIVE = {
    "srtf": Discipline(order=left, preempts=True),
    "srsf": Discipline(order=service_left, preempts=True),
    "optimus:round=200s": Discipline(order=service_left, preempts=True, period=200.0),
    "gandiva:slice=100s,eviction=30s": Discipline(order=gandiva_order, preempts=True, period=100.0),
    "themis:lease=150s": Discipline(order=stretch, preempts=True, period=150.0),
}
DISCIPLINES = WAITING_ONLY | PREEMPTIVE


def random_rows(
    dice: np.random.Generator, largest: int, *, vcs: bool = False, priorities: bool = False
) -> list:
    """Some thirty jobs that come faster than they can be done."""
    count = int(dice.integers(15, 40))
    arrivals = np.sort(dice.integers(0, 1500, count))
    return [
        (
            float(at),
            int(dice.choice([1, 1, 2, 3, 4, largest])),
            float(dice.integers(10, 400)),
            str(dice.choice(["x", "y", "z"])) if vcs else None,
            int(dice.integers(-1, 2)) if priorities else 0,
        )
        for at in arrivals
    ]


def random_faults(dice: np.random.Generator, machines: int) -> list[tuple[float, int, str]]:
    """Outages and drains, some of which overlap."""
    found = []
    for _ in range(12):
        at, lasts = int(dice.integers(1, 2000)), int(dice.integers(1, 400))
        down, up = ("fail", "repair") if dice.random() < 0.7 else ("drain", "undrain")
        machine = int(dice.integers(machines))
        found += [(float(at), machine, down), (float(at + lasts), machine, up)]
    return sorted(found, key=lambda fault: fault[0])


def berth_run(name: str, rows: list, machines: list[int], **setting: Any) -> Run:
    own = [(at, gpus, seconds, None, vc, priority) for at, gpus, seconds, vc, priority in rows]
    chosen = {"network": "off", "eviction_s": RESTORE[0], "eviction_large_s": RESTORE[1], "checkpoint_s": 0.0}
    return simulate(jobs(own), cluster(machines), load_policy(name), Setting(**{**chosen, **setting}))


def plain_run(name: str, rows: list, machines: list[int], **more: Any) -> PlainEngine:
    restore = (30.0, 30.0) if name.startswith("gandiva") else RESTORE  # it states its own
    return PlainEngine(rows, machines, DISCIPLINES[name], restore=restore, **more).run()


def assert_same(run: Run, plain: PlainEngine) -> None:
    assert run.unfinished == ()
    fields = {
        "first_start_s": "first_start",
        "end_s": "end",
        "waited_s": "waited",
        "attained_gpu_s": "attained",
        "evictions": "evictions",
    }
    for theirs, ours in fields.items():
        assert run.records[theirs].tolist() == [getattr(job, ours) for job in plain.jobs], theirs
    assert run.accounts["lost_gpu_s"].tolist() == [job.lost for job in plain.jobs]
    assert run.accounts["redone_s"].tolist() == [job.redone for job in plain.jobs]
    assert run.clock[0]["idle_wanted_s"] == plain.idle_wanted
    assert run.clock[0]["evictions"] == plain.evictions


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", DISCIPLINES)
def test_on_one_machine_every_figure_is_that_of_the_plain_engine(name, seed):
    dice = np.random.default_rng([seed, 1])
    rows = random_rows(dice, 10)
    assert_same(berth_run(name, rows, [12]), plain_run(name, rows, [12]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", DISCIPLINES)
def test_with_priorities_and_quotas_too(name, seed):
    dice = np.random.default_rng([seed, 2])
    rows, quotas = random_rows(dice, 6, vcs=True, priorities=True), {"x": 6, "y": 9}
    assert_same(berth_run(name, rows, [12], quotas=quotas), plain_run(name, rows, [12], quotas=quotas))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("checkpoint_s", [0.0, 60.0])
@pytest.mark.parametrize("name", ["fifo", "fit-first", "sjf"])
def test_on_machines_that_fail_and_are_drained_too(name, checkpoint_s, seed):
    dice, machines = np.random.default_rng([seed, 3]), [4, 6, 2, 8]
    rows, down = random_rows(dice, 9), random_faults(dice, len(machines))
    run = berth_run(name, rows, machines, checkpoint_s=checkpoint_s, faults=faults(down))
    assert_same(run, plain_run(name, rows, machines, checkpoint=checkpoint_s, faults=down))
    assert run.clock[0]["evictions"] > 0
