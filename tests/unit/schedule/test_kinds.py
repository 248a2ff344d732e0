"""Jobs that need a device type wait for it, reserve only that type, and move no other jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from berth.schedule import Policy, PreemptByGain, Rules, StaticOrder
from berth.simulate.events import event_frame
from berth.simulate.metrics import summarise
from berth.simulate.run import Setting, simulate
from berth.testing import check_policy, cluster, jobs
from berth.testing.policies import EXERCISES

OLD, NEW, OTHER = 0, 1, 2  # numbered by speed
ANY = -1
MACHINES = [{"A30": 4}, {"A6000": 4}, {"A40": 4}]


def played(rows: list, policy: str | Policy, machines: list = MACHINES) -> Any:
    """Records of a run; a row is (arrival, devices, duration, type or set of types)."""

    def ask(world: Any, clock: Any) -> int:
        for record, (*_, asked) in zip(world.jobs, rows, strict=True):
            several = isinstance(asked, set)
            record["device_type"] = -1 if several else asked
            record["device_type_mask"] = sum(1 << kind for kind in asked) if several else -1
        return 1_000_000

    setting = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, reference_device="A30")
    chosen = EXERCISES[policy] if isinstance(policy, str) else policy
    trace = jobs([row[:3] for row in rows])
    return simulate(trace, cluster(machines), chosen, setting, watch=ask).records


@pytest.mark.parametrize("policy", ["fit-first", "nearest-only", "near-backfill", "least-left"])
@pytest.mark.parametrize(
    ("asked", "after"),
    [(OLD, 0), (NEW, None), ({OLD, NEW}, None), ({OLD, OTHER}, 1), (ANY, None)],
)
def test_a_job_starts_on_the_first_machine_of_a_type_it_takes(policy, asked, after):
    records = played([(0, 4, 100, OLD), (0, 4, 50, OTHER), (2, 4, 2000, asked)], policy)
    assert records["evictions"].sum() == 0
    assert records["first_start_s"][2] == (2.0 if after is None else records["end_s"][after])


def test_a_machine_of_another_type_is_not_held_for_it():
    # j2 waits for all A30s. Of the A40s four come free before, which is nothing to it.
    rows = [(0, 4, 100, OLD), (0, 4, 50, NEW), (1, 4, 10, OLD), (2, 2, 1000, NEW)]
    records = played(rows, "near-backfill", [{"A30": 4}, {"A40": 8}])
    assert records["end_s"][1] < records["end_s"][0]
    assert records["first_start_s"].tolist() == [0.0, 0.0, records["end_s"][0], 2.0]


def test_what_is_held_is_of_its_type():
    # j1 waits for all A30s; j2 may not keep the free half of them, and starts on those of another type.
    rows = [(0, 2, 100, OLD), (1, 4, 10, OLD), (2, 2, 1000, {OLD, NEW}), (3, 2, 1000, OLD)]
    records = played(rows, "near-backfill")
    assert records["first_start_s"].tolist() == [0.0, records["end_s"][0], 2.0, records["end_s"][1]]


def test_a_gang_is_never_put_together_from_several_types():
    records = played(
        [(0, 2, 100, OLD), (0, 2, 100, NEW), (1, 4, 10, ANY)], "fit-first", [{"V100": 4, "P100": 4}]
    )
    assert records["first_start_s"][2] == records["end_s"][:2].min()


@dataclass(frozen=True)
class FirstStays(Policy):
    """The job that comes at ten has any moved but the first."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByGain())

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return 1e9 if job.arrival_s == 10 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return math.inf if victim.arrival_s == 0 else 10.0 - victim.arrival_s


@pytest.mark.parametrize(
    ("asked", "victim"), [(ANY, 1), (NEW, 1), (OTHER, 2), (OLD, None), ({OLD, OTHER}, 2)]
)
def test_room_is_made_on_the_first_type_that_it_takes_and_that_has_it(asked, victim):
    rows = [(0, 4, 5000, OLD), (1, 4, 5000, NEW), (2, 4, 5000, OTHER), (10, 4, 10, asked)]
    records = played(rows, FirstStays())
    assert records["evictions"].tolist() == [int(number == victim) for number in range(4)]
    assert (records["first_start_s"][3] == 10.0) == (victim is not None)


@pytest.mark.parametrize("network", ["off", "static", "on"])
def test_who_asks_for_gpus_never_gets_cores(network):
    # The cores come first, are more, and nearer together: they are nothing to a job that asks for eight GPUs.
    machines = cluster([{"cpu-core": 32, "V100": 4}, {"cpu-core": 64}, {"V100": 4}])
    trace = jobs([(0, 8, 100, "vgg16"), (0, 4, 100, "vgg16"), (0, 16, 10, "vgg16")])
    run = check_policy(EXERCISES["fit-first"], trace, machines, Setting(network=network))
    log = event_frame(run)
    assert log.filter(log["event"] == "started").select("time_s", "job", "device").rows() == [
        (0.0, "j0", "V100-16"),
        (100.0, "j1", "V100-16"),
    ]
    assert run.jobs.too_large == ("j2",)
    assert summarise(run).gpu_utilisation == pytest.approx((8 * 100 + 4 * 100) / (8 * 200))


@pytest.mark.parametrize(
    "machines",
    [[{"V100": 4, "P100": 4}] * 2, [[{"V100": 4}, {"P100": 4}]] * 2],
    ids=["two types in each machine", "two types in each rack"],
)
def test_at_the_nearest_place_that_one_type_has_a_gang_takes_its_duration(machines):
    # Eight devices of both types stand nearer together than eight of one: no gang can ever stand there.
    setting = Setting(network="static", congestion=10.0, reference_device="V100")
    run = simulate(jobs([(0, 8, 1000, "vgg16")]), cluster(machines), EXERCISES["fit-first"], setting)
    assert run.records["end_s"].tolist() == [1000.0]
