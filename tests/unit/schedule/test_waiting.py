"""Waiting jobs: their order, their reasons, and when they are considered again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from berth.schedule import Blocked, Policy, PreemptByGain, PreemptByOrder, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy
from berth.schedule.reasons import CODES, explained_record
from berth.schedule.records import JobStatus
from berth.simulate.run import Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES, Delay
from berth.workload.trace import Trace

QUIET = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)


@dataclass(frozen=True)
class Turning(Policy):
    """First come, first served; who has waited for half a minute goes before all who came earlier."""

    rekeyed: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(reorder_after_s=30.0) if self.rekeyed else None, blocked=Blocked.STOP)

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return job.arrival_s if now - job.queued_since_s < 30.0 else -job.arrival_s


@pytest.mark.slow
@pytest.mark.parametrize("rekeyed", [0.0, 1.0], ids=["asked at every pass", "asked after a wait"])
def test_an_order_that_turns_while_they_wait_is_followed(rekeyed):
    rows = [(0, 1, 100), *((number, 1, 10) for number in range(1, 7)), (145, 1, 10)]
    run = simulate(jobs(rows), cluster([1]), Turning(rekeyed), QUIET)
    assert np.argsort(run.records["first_start_s"]).tolist() == [0, 6, 5, 4, 3, 2, 1, 7]
    assert run.records["end_s"].max() == 170.0


@dataclass(frozen=True)
class JustAfter(Policy):
    """Holds out for one machine until just after ten seconds, and says ten."""

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.widest_tier if now > 10.0 else job.nearest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        return 10.0 if now <= 10.0 else math.inf


@pytest.mark.slow
def test_a_timer_that_runs_out_but_for_rounding_is_looked_at_again_within_a_moment():
    rows = [(0, 3, 1000), (0, 3, 1000), (1, 2, 10)]
    start = simulate(jobs(rows), cluster([4, 4]), JustAfter(), QUIET).records["first_start_s"][2]
    assert 10.0 < start < 10.001


def at_the_end_of(rows: list, machines: object, policy: Policy, until: float, **setting: Any) -> Any:
    """The records at the last event before a time."""
    seen: dict[str, Any] = {}

    def look(world: Any, clock: Any) -> int:
        if world.state["now"][0] < until:
            seen["jobs"] = world.jobs.copy()
            if world.jobs["state"][-1] == JobStatus.WAITING:
                seen["jobs"][-1] = explained_record(world, len(rows) - 1)
        return 1

    simulate(jobs(rows), cluster(machines), policy, Setting(**{"network": "off", **setting}), watch=look)
    return seen["jobs"]


def test_what_is_held_for_the_first_job_of_all_is_held_for_another():
    # m0 fails under j0, for which m1 is held then; j2 would keep half of it for too long.
    rows, down = [(0, 4, 100), (0, 2, 200), (20, 2, 500)], faults([(10, 0, "fail"), (60, 0, "repair")])
    records = at_the_end_of(rows, [4, 4], EXERCISES["near-backfill"], 50.0, faults=down)
    assert CODES[records[2]["reason"]] == "held-for-other"


def test_where_order_preempts_those_behind_the_first_have_a_true_reason_too():
    # Two devices are free, on two machines; j2 and j3 both hold out for one, and deserve no place of another.
    rows = [(0, 3, 1000, "vgg16"), (0, 3, 1000, "vgg16"), (5, 2, 10, "vgg16"), (5, 2, 10, "vgg16")]
    records = at_the_end_of(rows, [4, 4], load_policy("tiresias"), 50.0, network="static")
    assert [CODES[reason] for reason in records["reason"][2:]] == ["too-spread"] * 2


@pytest.mark.parametrize(
    ("policy", "machines", "rows", "code"),
    [
        ("nearest-only", [[2], [2]], [(0, 1, 100), (0, 1, 100), (5, 2, 10)], "nearest"),
        ("nearest-only", [[3], [3]], [(0, 2, 100), (0, 2, 100), (5, 2, 10)], "too-spread"),
        ("nearest-only", [[3], [3]], [(0, 3, 100), (0, 2, 100), (5, 2, 10)], "no-room"),
        ("near-backfill", [[3], [3]], [(0, 2, 100), (0, 3, 200), (5, 3, 10), (6, 1, 500)], "held-for-other"),
        ("near-backfill", [[3], [3]], [(0, 2, 100), (0, 2, 100), (5, 3, 10), (6, 2, 500)], "too-spread"),
    ],
    ids=[
        "it runs",
        "devices are too far apart",
        "too few are free",
        "they are held",
        "held ones too far apart",
    ],
)
def test_the_reason_is_the_true_one_of_several_that_are_alike(policy, machines, rows, code):
    records = at_the_end_of(rows, machines, EXERCISES[policy], 50.0)
    assert CODES[records[-1]["reason"]] == code


def test_what_waiting_saves_is_the_work_left_times_the_slow_down_of_the_next_tier():
    rows = [(0, 2, 1000, "vgg16"), (0, 2, 1000, "vgg16"), (5, 2, 100, "vgg16")]
    records = at_the_end_of(rows, [[3], [3]], EXERCISES["nearest-only"], 50.0, network="static")
    waits = records[2]
    assert waits["slowdown"][1] < waits["slowdown"][2]
    assert waits["saves_s"] == pytest.approx(100.0 * (waits["slowdown"][1] - waits["slowdown"][0]))


@dataclass(frozen=True)
class OneMakesWay(Policy):
    """The second to come has the first moved."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByGain(), relax_locality=True)

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return 1e9 if job.arrival_s == 10 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return 1.0


@pytest.mark.slow
def test_the_usual_size_of_jobs_counts_each_job_once_however_often_it_starts():
    run = simulate(jobs([(0, 4, 100), (10, 4, 50), (500, 2, 200)]), cluster([4]), OneMakesWay(), QUIET)
    assert run.records["evictions"].tolist() == [1, 0, 0]
    assert run.world.state["starts"][0] == 3
    assert run.world.state["typical_log_gpu_s"][0] == pytest.approx(np.log([400.0, 200.0, 400.0]).mean())


@dataclass(frozen=True)
class HoldsOut(Policy):
    """Holds out for the nearest tier for ten seconds, and remembers how it went."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), learn_timers=True)

    def timers(self, tiers: Any) -> list[float]:
        return [10.0] * len(tiers)

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier if now - job.queued_since_s < job.delay_timer_s[0] else job.widest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        return job.queued_since_s + job.delay_timer_s[0]

    @staticmethod
    def observe(stats: Any, wait: float, gave_up: int, now: float, params: Any) -> float:
        return stats.initial_timer_s


@pytest.mark.slow
def test_every_start_of_a_gang_records_the_tier_it_got_and_the_tiers_it_gave_up():
    # j2 gives up one machine after 10 s and is spread; j3 and j4 have one at once. j5 is no gang.
    rows = [(0, 3, 100), (0, 3, 105), (1, 2, 50), (100, 2, 1000), (100, 2, 50), (100, 1, 50)]
    run = simulate(jobs(rows), cluster([4, 4]), HoldsOut(), QUIET)
    assert run.records["first_start_s"].tolist() == [0.0, 0.0, 11.0, 100.0, 100.0, 100.0]
    single, pair, three = run.world.wait_stats[:, :2]
    assert single["count"].tolist() == [0, 0]
    assert three["count"].tolist() == [2, 0]
    assert pair["count"].tolist() == [3, 1]
    assert pair[0]["wait_s"][:3].tolist() == [10.0, 0.0, 0.0]
    assert pair[0]["gave_up"][:3].tolist() == [1, 0, 0]
    assert pair[1]["wait_s"][0] == 10.0
    assert pair[1]["gave_up"][0] == 0


@dataclass(frozen=True)
class ByUser(Policy):
    """Whoever came first as a user goes first, with all jobs."""

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return float(job.user)


@pytest.mark.slow
def test_a_policy_knows_whose_job_it_is():
    columns = {
        "job_id": list("abcde"),
        "submit_s": [0.0, 1.0, 2.0, 3.0, 4.0],
        "num_gpu": [1] * 5,
        "duration_s": [10.0] * 5,
        "user": ["ann", "bob", None, "ann", "bob"],
    }
    run = simulate(Trace.from_columns(columns, source="test"), cluster(1), ByUser(), Setting(network="off"))
    assert run.records["user"].tolist() == [0, 1, 2, 0, 1]
    assert np.argsort(run.records["end_s"]).tolist() == [0, 3, 1, 4, 2]


@dataclass(frozen=True)
class TwoKeys(Policy):
    """All are equal but for the work that is left."""

    turns: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByOrder() if self.turns else None)

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return 0.0

    @staticmethod
    def tie_break(job: Any, now: float, params: Any) -> float:
        return job.estimated_remaining_s


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "ends"), [(0.0, [100.0, 160.0, 110.0]), (1.0, [160.0, 61.0, 12.0])])
def test_among_equals_the_second_key_decides_before_who_came_first(turns, ends):
    rows = [(0, 1, 100), (1, 1, 50), (2, 1, 10)]
    assert simulate(jobs(rows), cluster(1), TwoKeys(turns), QUIET).records["end_s"].tolist() == ends


def test_what_a_policy_learns_is_how_long_each_waited():
    # j0 waits for nothing, j1 from 10 s on until 50 s: half of the old timer and half of the wait each time.
    run = simulate(jobs([(0, 4, 50), (10, 4, 50)]), cluster([4]), Delay(first_s=300.0), QUIET)
    assert run.world.wait_stats["timer_s"][0, 0] == 0.5 * (0.5 * 300.0 + 40.0)
