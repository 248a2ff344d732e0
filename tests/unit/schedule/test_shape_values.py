"""Which of its shapes a job takes and when it changes to another, by times that are computed by hand.

Without a network a shape of s seconds a step takes s seconds for each of the job's examples, wherever it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from berth.schedule import Defragment, Policy, PreemptByGain, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy
from berth.schedule.shape_choice import take_shape
from berth.simulate.events import event_frame
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster
from berth.workload.shapes import EVERY, Offer, Part, Shape, Work, canonical
from berth.workload.trace import Trace

SETTING = Setting(network="off", log=True, eviction_s=40.0, eviction_large_s=60.0)


def offer(examples: float, *shapes: tuple[int, float], tier: str | None = None) -> Offer:
    """Shapes as devices and seconds a step."""
    made = (
        Shape(str(gpus), (Part("all", (("GPU", gpus),), tier),), ((EVERY, step_s),), 1.0)
        for gpus, step_s in shapes
    )
    return canonical(Offer(Work(examples), tuple(made)))


def play(rows: list[tuple[float, Any]], machines: Any, policy: Any = "berth", **columns: Any) -> Run:
    """A run of jobs by submission: an offer, or the devices and seconds of a plain gang."""
    plain = [(one.alternatives[0].parts[0].size, 1.0) if isinstance(one, Offer) else one for _, one in rows]
    trace = Trace.from_columns(
        {
            "job_id": [f"j{row}" for row in range(len(rows))],
            "submit_s": [at for at, _ in rows],
            "num_gpu": [gpus for gpus, _ in plain],
            "duration_s": [float(seconds) for _, seconds in plain],
            **columns,
        },
        source="test",
        offers={f"j{row}": one for row, (_, one) in enumerate(rows) if isinstance(one, Offer)},
    )
    chosen = load_policy(policy) if isinstance(policy, str) else policy
    return simulate(trace, cluster(machines), chosen, SETTING)


def shapes(run: Run, job: str) -> list[tuple[float, str]]:
    """When a job took which shape."""
    log = event_frame(run)
    found = log.filter((pl.col("job") == job) & pl.col("event").is_in(["started", "moved"]))
    return found.select("time_s", "shape").rows()


@pytest.mark.parametrize(
    ("until_s", "start"), [(899.0, (899.0, "8")), (903.0, (1.0, "2"))], ids=["sooner", "later"]
)
def test_a_job_waits_for_a_shape_in_which_it_ends_sooner(until_s, start):
    """j1 comes at 1 s. It ends at 1,001 s on two devices, or 100 s after j0, which holds four of the eight."""
    run = play([(0, (4, until_s)), (1, offer(100, (2, 10.0), (8, 1.0)))], [8], preemptible=[0, 1])
    assert shapes(run, "j1")[0] == start


@pytest.mark.parametrize("until_s", [400.0, 500.0])
def test_a_job_ends_its_work_in_the_shape_in_which_it_started(until_s):
    run = play([(0, (4, until_s)), (1, offer(100, (2, 10.0), (8, 1.0)))], [8], preemptible=[0, 1])
    assert run.records["end_s"][1] == until_s + 100.0


def growing(work_s: float, until_s: float, policy: str = "berth:move_up=1") -> Run:
    """j1 comes at 1 s and has `work_s` seconds of work on two devices, half on eight; j0 ends at `until_s`."""
    either = offer(100, (2, work_s / 100), (8, work_s / 200))
    return play([(0, (4, until_s)), (1, either)], [8], policy, preemptible=[0, 1])


@pytest.mark.parametrize(
    ("left_s", "times", "grows"), [(80, 1, False), (81, 1, True), (160, 2, False), (161, 2, True)]
)
def test_a_running_job_grows_where_that_saves_more_than_restores_cost(left_s, times, grows):
    """At 10,000 s it has `left_s` left and saves half of that; a restore takes 40 s."""
    run = growing(9999.0 + left_s, 10_000.0, f"berth:move_up={times}")
    assert shapes(run, "j1") == [(1.0, "2"), (10_000.0, "8")][: 1 + grows]
    assert run.records["end_s"][1] == pytest.approx(
        10_000.0 + (40.0 + left_s / 2 if grows else left_s), rel=1e-12
    )


@pytest.mark.parametrize(("until_s", "grows"), [(600.5, False), (601.0, True)])
def test_no_job_changes_its_shape_within_ten_minutes_of_its_start(until_s, grows):
    """No event follows the end of j0. To wait for it would have been 5 s longer, at least."""
    assert len(shapes(growing(1190.0, until_s), "j1")) == 1 + grows


def test_what_is_left_is_the_same_work_in_another_shape():
    """4,000 of 7,990 s are done at 4,001 s: 3,990 / 2 s in the other shape are left, after a restore of 40 s."""
    run = growing(7990.0, 4001.0)
    assert run.records["end_s"][1] == pytest.approx(4001.0 + 40.0 + 1995.0, rel=1e-12)
    assert run.accounts["reshapes"][1] == run.records["moves"][1] == 1
    assert run.records["evictions"][1] == 0


def test_a_job_that_changes_its_shape_returns_what_it_held_and_takes_what_it_needs():
    """On a cluster of ten, j1 grows from two to eight devices at 4,001 s; j2, of three, waits for its end."""
    either = offer(100, (2, 79.9), (8, 39.95))
    rows = [(0, (4, 4001.0)), (0, (4, 4001.0)), (1, either), (4010, (3, 10.0)), (4020, (2, 10.0))]
    run = play(rows, [10], "berth:move_up=1,min_run=10h", preemptible=[0, 0, 1, 1, 1])
    assert shapes(run, "j2") == [(1.0, "2"), (4001.0, "8")]
    assert run.records["first_start_s"][3:].tolist() == [pytest.approx(6036.0, rel=1e-12), 4020.0]


@dataclass(frozen=True)
class Tidy(Policy):
    """Running jobs step aside for one that finds no machine."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), defragment=Defragment(1.0))

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1


@pytest.mark.parametrize(
    ("asked", "start_s"),
    [
        ((3, 100.0), 1000.0),
        (offer(100, (3, 1.0), tier="machine"), 5000.0),
        (offer(100, (3, 1.0), (4, 1.0), tier="machine"), 5000.0),
    ],
    ids=["a gang", "a part within one machine", "several shapes"],
)
def test_jobs_step_aside_for_plain_gangs_only(asked, start_s):
    """From 5 s on half of each machine is free: of m0 the rest is free at 5,000 s. j3 comes at 1,000 s."""
    rows = [(0.0, (2, 5000.0)), (0.0, (2, 5.0)), (1.0, (2, 9000.0)), (1000.0, asked)]
    assert play(rows, [4, 4], Tidy()).records["first_start_s"][3] == start_s


@dataclass(frozen=True)
class Gains(Policy):
    """Jobs of ten seconds gain `gain_s` by a start; their victims lose a restart."""

    gain_s: float = 1e6

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByGain(margin=1.0))

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return params.gain_s if job.work_s == 10.0 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return 0.0


# A part of five devices within one machine, for ten seconds.
PART = offer(10, (5, 1.0), tier="machine")


def test_two_jobs_with_parts_have_one_victim_each():
    """Both machines are held; each of the two that come has one job evicted, and both are back at 60 s for 990 s."""
    run = play([(0, (8, 1000.0)), (0, (8, 1000.0)), (50, PART), (50, PART)], [8, 8], Gains())
    assert run.records["evictions"].tolist() == [1, 1, 0, 0]
    assert run.records["first_start_s"].tolist() == [0.0, 0.0, 50.0, 50.0]
    assert run.records["end_s"].tolist() == [1050.0, 1050.0, 60.0, 60.0]


@pytest.mark.parametrize(("gain_s", "start_s"), [(40.0, 1000.0), (41.0, 50.0)])
def test_a_job_with_parts_has_others_evicted_where_it_gains_more_than_they_lose(gain_s, start_s):
    """The victim holds eight devices, so that its restart takes 40 s."""
    run = play([(0, (8, 1000.0)), (50, PART)], [8], Gains(gain_s))
    assert run.records["first_start_s"][1] == start_s
    assert run.records["evictions"][0] == (start_s == 50.0)


def test_a_part_tied_to_one_machine_has_none_evicted_where_they_would_free_devices_of_two():
    """Half of each machine is held by a job that may not be evicted: five devices come free on neither."""
    rows = [(0, (4, 1000.0)), (0, (4, 500.0)), (0, (4, 1000.0)), (0, (4, 500.0)), (50, PART)]
    run = play(rows, [8, 8], Gains(), preemptible=[0, 1, 0, 1, 1])
    assert run.records["evictions"].tolist() == [0] * 5


@pytest.mark.parametrize(
    ("until_s", "start"), [(800.0, (800.0, "8")), (990.0, (500.0, "2"))], ids=["still sooner", "no longer"]
)
def test_what_a_job_has_waited_for_a_shape_counts_against_waiting_on(until_s, start):
    """j1 could run for 1,000 s on two devices from 1 s on, and waits for j0 to end at 500 s to run for 100 s on eight.

    j2, of a higher priority, takes the other four devices at 499 s until `until_s`: by then j1 has waited half of
    those 1,000 s.
    """
    either = offer(100, (2, 10.0), (8, 1.0))
    rows = [(0, (4, 500.0)), (1, either), (499, (4, until_s - 499.0))]
    run = play(rows, [8], preemptible=[0, 1, 0], priority=[0, 0, 1])
    assert run.records["first_start_s"][2] == 499.0
    assert shapes(run, "j1")[0] == start


def test_a_job_described_by_another_shape_has_the_same_work_in_seconds_of_that():
    """A unit of work takes three times as long, on devices of types 0 and 2."""
    times = ("work_s", "done_s", "given_s", "median_work_s", "index_s", "true_remaining_s")
    times = (*times, "estimated_remaining_s", "checkpointed_remaining_s")
    job = SimpleNamespace(shape=4, answers=3, slowdown=[1.0] * 8, **dict.fromkeys(times, 10.0))
    other = {
        "gpus": 6,
        "vector": 1,
        "device_type": -1,
        "need": [4, 0, 2, 0, 0, 0, 0, 0],
        "nearest_tier": 1,
        "widest_tier": 2,
        "message_bytes": 7.0,
        "slowdown": [1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0],
    }
    here = SimpleNamespace(unit_s=2.0)
    world = SimpleNamespace(jobs=[job], shapes={4: here, 5: SimpleNamespace(unit_s=6.0, **other)})
    take = getattr(take_shape, "py_func", take_shape)
    take(world, 0, 4)
    assert (job.shape, job.answers, job.work_s) == (4, 3, 10.0)
    take(world, 0, 5)
    assert [getattr(job, name) for name in times] == [30.0] * len(times)
    assert (job.shape, job.answers, job.device_type_mask) == (5, -1, 0b101)
    described = {name: getattr(job, name) for name in other if name != "need"}
    assert described == {name: value for name, value in other.items() if name != "need"}


def test_a_job_does_not_count_on_devices_for_which_one_ahead_of_it_waits():
    """j1 and j2 could run for 1,000 s on the two free devices of ten; each would end sooner on eight, from 600 s on.

    j1 waits for those. j2 would have them after j1 only, so it starts on two.
    """
    either = offer(100, (2, 10.0), (8, 1.0))
    run = play([(0, (8, 600.0)), (1, either), (2, either)], [10], preemptible=[0, 1, 1])
    assert (shapes(run, "j1")[0], shapes(run, "j2")[0]) == ((600.0, "8"), (2.0, "2"))
