"""Totals by user: kept by every policy, and read by policies that share the cluster between users."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from berth.schedule import Policy
from berth.schedule.hooks import compiled_notes
from berth.schedule.policies.registry import load_policy
from berth.schedule.records import JobStatus, places_of
from berth.schedule.world import new_jobs, new_world
from berth.simulate.run import Setting, simulate
from berth.testing import check_policy, cluster, faults
from berth.testing.policies import EXERCISES
from berth.workload.trace import Trace

EXAMPLES = Path(__file__).parents[3] / "examples"
FAIR, DRF = f"{EXAMPLES}/fair_share.py", f"{EXAMPLES}/drf.py"
OFF = Setting(network="off")


def trace_of(rows, **more):
    """Jobs from (user, arrival, GPUs, duration), with further columns."""
    users, submitted, gpus, seconds = zip(*rows, strict=True)
    columns = {
        "job_id": [f"j{number}" for number in range(len(rows))],
        "user": list(users),
        "submit_s": [float(at) for at in submitted],
        "num_gpu": list(gpus),
        "duration_s": [float(span) for span in seconds],
        **more,
    }
    return Trace.from_columns(columns, source="test")


def held_at_first(run, users):
    """Devices that each user's jobs hold once all have been considered at the start, by device type."""
    held = Counter()
    for user, record in zip(users, run.records, strict=True):
        if record["first_start_s"] == 0.0:
            held[user, int(record["device_type"])] += int(record["gpus"])
    return held


def test_users_hold_devices_in_proportion_to_their_weights():
    rows = [("a", 0, 1, 1000)] * 20 + [("b", 0, 1, 1000)] * 20
    policy = load_policy(FAIR)
    assert compiled_notes(policy) == []
    run = simulate(trace_of(rows), cluster([12]), policy, OFF)
    assert held_at_first(run, [user for user, *_ in rows]) == {("a", -1): 8, ("b", -1): 4}


@pytest.mark.slow
def test_a_share_is_kept_while_jobs_come_and_go():
    dice = np.random.default_rng(1)
    rows = [
        (user, 0, int(dice.integers(1, 4)), float(dice.uniform(50, 500))) for _ in range(600) for user in "ab"
    ]
    trace = trace_of(rows)
    run = check_policy(load_policy(f"{FAIR}:user=1,weight=3"), trace, cluster([[8, 8], [8, 8]]), OFF)
    user = np.array(trace.frame["user"].to_list())
    until_s = 5000.0  # both users have jobs waiting
    assert (run.records["end_s"] > until_s)[user == "a"].any()
    assert (run.records["end_s"] > until_s)[user == "b"].any()
    busy_s = np.clip(until_s - run.records["first_start_s"], 0.0, run.records["work_s"]) * run.records["gpus"]
    assert busy_s[user == "b"].sum() / busy_s[user == "a"].sum() == pytest.approx(3.0, rel=0.05)


@pytest.mark.slow
def test_a_quota_that_a_job_closed_is_open_again_for_a_job_that_goes_before_it_now():
    """j1 does not fit its quota and blocks it; once j2 has started, the other user's j3 goes before j1, and fits."""
    rows = [("c", 0, 1, 1000), ("b", 10, 2, 1000), ("b", 10, 1, 1000), ("a", 10, 1, 1000)]
    trace = trace_of(rows, vc=["x", "x", None, "x"])
    run = check_policy(load_policy(DRF), trace, cluster([8]), Setting(network="off", quotas={"x": 2}))
    assert run.records["first_start_s"].tolist() == [0.0, 1010.0, 10.0, 10.0]


def test_dominant_shares_are_equal_in_the_example_of_the_paper():
    """9 CPUs and 18 GB there, with tasks of (1, 4) and (3, 1): here two types of device, and a job for each part."""
    kinds = {"A30": 9, "A6000": 18}  # types 0 and 1
    parts = [("a", 1, 0), ("a", 4, 1), ("b", 3, 0), ("b", 1, 1)] * 6

    def ask(world, clock):
        world.jobs["device_type"] = [kind for _, _, kind in parts]
        return 1_000_000

    policy = load_policy(DRF)
    assert compiled_notes(policy) == []
    trace = trace_of([(user, 0, gpus, 1000) for user, gpus, _ in parts])
    run = simulate(trace, cluster([kinds]), policy, Setting(network="off", reference_device="A30"), watch=ask)
    held = held_at_first(run, [user for user, *_ in parts])
    assert held == {("a", 0): 3, ("a", 1): 12, ("b", 0): 6, ("b", 1): 2}
    assert held["a", 1] / 18 == held["b", 0] / 9


@dataclass(frozen=True)
class NearWhileRich(Policy):
    """Holds out for one machine, and then until 300 s, while its user holds as many devices as this."""

    devices: float = 0.0

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any, cluster: Any) -> int:
        held_out = now < 300.0 and cluster.user_gpus >= params.devices
        return job.nearest_tier if held_out else job.widest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any, cluster: Any) -> float:
        return 300.0 if cluster.user_gpus >= params.devices else math.inf


@pytest.mark.parametrize(
    ("devices", "user", "start_s"), [(4, "a", 5.0), (3, "a", 300.0), (3, "b", 300.0), (3, "c", 5.0)]
)
def test_which_place_a_job_accepts_and_until_when_may_depend_on_what_its_user_holds(devices, user, start_s):
    """One device is free on each machine; users a and b hold the three others of each, and c and d hold none."""
    rows = [("a", 0, 3, 1000), ("b", 0, 3, 2000), (user, 5, 2, 10), ("d", 5, 8, 1)]
    run = simulate(trace_of(rows), cluster([4, 4]), NearWhileRich(float(devices)), OFF)
    assert run.records["first_start_s"].tolist() == [0.0, 0.0, start_s, 2000.0]


class Recount:
    """A `watch` that compares the totals with what the running jobs hold, after every event."""

    def __init__(self):
        self.moments = 0

    def __call__(self, world, clock):
        self.moments += 1
        now = float(clock[0]["now"])
        expected, gpu_s = np.zeros_like(world.users["devices"]), np.zeros(len(world.users))
        for job in world.jobs:
            gpu_s[job["user"]] += job["attained_gpu_s"]
            if job["state"] == JobStatus.RUNNING:
                gpu_s[job["user"]] += job["gpus"] * (now - job["updated_s"])
                for place in places_of.py_func(World(world), int(job["first_place"])):
                    expected[job["user"], world.hosts[place.host]["device_type"]] += place.count
        assert (world.users["devices"] == expected).all()
        assert (world.users["gpus"] == expected.sum(axis=1)).all()
        used = world.users["gpu_s"] + world.users["gpus"] * np.maximum(0.0, now - world.users["updated_s"])
        assert used == pytest.approx(gpu_s)
        return 1


class World:
    """Places whose fields are attributes, as compiled code has them."""

    def __init__(self, world):
        self.places = world.places.view(np.recarray)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        load_policy(FAIR),
        load_policy("tiresias"),
        load_policy("berth"),
        load_policy("gandiva"),
        EXERCISES["everything"],
        EXERCISES["even-shapes"],
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_totals_are_those_of_the_running_jobs_after_every_event(policy):
    dice = np.random.default_rng(7)
    rows = [
        (
            str(dice.integers(5)),
            20 * number,
            int(dice.choice([1, 2, 3, 4, 6])),
            float(dice.uniform(50, 3000)),
        )
        for number in range(60)
    ]
    down = faults([(400, 1, "fail"), (700, 1, "repair"), (900, 0, "drain"), (1500, 0, "undrain")])
    recount = Recount()
    machines = cluster([[4, 4], [{"V100-16": 4}, {"P100": 4}]])
    simulate(trace_of(rows), machines, policy, Setting(network="on", faults=down), watch=recount)
    assert recount.moments > 100


def test_devices_that_are_installed_are_counted_by_type():
    machines = cluster([[{"V100": 4, "P100": 2}], [{"P100": 8}]])
    policy = load_policy("fifo")
    totals = new_world(machines, policy, new_jobs(1)).cluster[0]
    names = [device.name for device in machines.device_types]
    assert totals["device_types"] == 2
    assert dict(zip(names, totals["devices"].tolist(), strict=False)) == {"V100-16": 4, "P100": 10}
