"""Queues of several segments: jobs that can start are found wherever they wait, at the second at which they can.

Two of eight devices are free: one on each of two machines, until j0 ends at 1,000 s and j1 at 2,000 s. Some 300 jobs
that need more than that wait at 10 s; a segment has at most 128 of them, and those at its ends are special cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest

from berth.schedule import Defragment, Policy, PreemptByGain, Reserve, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster, faults, jobs
from berth.testing.policies import EXERCISES

SETTING = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0)
BUSY = [(0, 3, 1000), (0, 3, 2000)]
COUNT = 300
ENDS = (0, 1, 127, 128, 129, 200, COUNT - 1)  # places in the queue, at and beside the ends of segments


def play(special: dict[int, tuple], policy: Policy, *more: tuple, each: tuple = (10, 8, 1)) -> Run:
    """A run of j0, j1, then `COUNT` jobs like `each` but for the special ones, then some more."""
    rows = [*BUSY, *(special.get(number, each) for number in range(COUNT)), *more]
    run = simulate(jobs(rows), cluster([4, 4]), policy, SETTING)
    assert run.world.walk[0]["segmented"]
    return run


@pytest.mark.parametrize("place", ENDS)
@pytest.mark.parametrize(
    ("policy", "gpus", "start_s"),
    [
        ("fit-first", 2, 10.0),  # on both machines
        ("fit-first", 3, 1000.0),
        ("nearest-only", 1, 10.0),
        ("nearest-only", 2, 1000.0),  # on one machine
    ],
)
def test_the_only_job_that_fits_starts_wherever_it_is_in_the_queue(policy, gpus, start_s, place):
    run = play({place: (10, gpus, 5)}, EXERCISES[policy])
    assert run.records["first_start_s"][2 + place] == start_s
    assert (run.records["first_start_s"][2:] >= 2000.0).sum() == COUNT - 1


def test_small_jobs_that_fill_a_segment_run_one_after_the_other():
    """Forty in the middle of the queue need the one free place for 10 s each."""
    run = play(dict.fromkeys(range(100, 140), (10, 2, 10)), EXERCISES["fit-first"])
    assert run.records["first_start_s"][102:142].tolist() == [10.0 + 10.0 * number for number in range(40)]


@dataclass(frozen=True)
class Patient(Policy):
    """Holds out for one machine for ten times its work, and asks to be woken then."""

    order_by_work: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder())

    @staticmethod
    def order(job: Any, now: float, params: Any) -> float:
        return job.work_s if params.order_by_work else job.arrival_s

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.widest_tier if now >= job.queued_since_s + 10.0 * job.work_s else job.nearest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        return job.queued_since_s + 10.0 * job.work_s


@pytest.mark.parametrize("place", ENDS)
def test_a_job_deep_in_the_queue_accepts_another_tier_when_its_own_time_has_come(place):
    """No event happens between 10 s and 1,000 s. The others accept two machines from 1,010 s on, and need more."""
    run = play({place: (10, 2, 7)}, Patient(), each=(10, 4, 100))
    assert run.records["first_start_s"][2 + place] == 10.0 + 70.0


def test_of_two_deep_in_the_queue_each_is_asked_at_its_own_time():
    """They give up one machine at 40 s and 45 s; the second needs the devices of the first, which ends at 43 s."""
    run = play({5: (10, 2, 3.5), 250: (10, 2, 3)}, Patient(), each=(10, 4, 100))
    assert run.records["first_start_s"][[252, 7]].tolist() == [40.0, 45.0]


@pytest.mark.parametrize(("fits", "later"), [(5, 3), (5, 7), (130, 5), (5, 130), (COUNT - 1, 1)])
def test_the_moment_to_ask_again_is_not_lost_beside_a_job_that_starts(fits, later):
    """Of three free devices one is taken at 10 s; the others are for a job that gives up one machine at 80 s.

    That no machine has two free devices is known from the first job.
    """
    rows = [*BUSY, (0, 3, 3000), *[(10, 4, 100)] * COUNT]
    rows[3], rows[3 + fits], rows[3 + later] = (10, 2, 1000), (10, 1, 5000), (10, 2, 7)
    run = simulate(jobs(rows), cluster([4, 4, 4]), Patient(), SETTING)
    assert run.records["first_start_s"][[3 + fits, 3 + later]].tolist() == [10.0, 80.0]


@pytest.mark.parametrize("seconds", [1, 64, 65, 128.5, 200, 299, 400])
def test_a_job_that_joins_the_middle_of_the_queue_is_found_there(seconds):
    """The queue is by work: 1 s, 2 s, and so on. The one that comes at 20 s fits on the two devices."""
    long = {number: (10, 8, 1 + number) for number in range(COUNT)}
    run = play(long, Patient(order_by_work=1.0), (20, 1, seconds), (20, 2, 400))
    assert run.records["first_start_s"][-2] == 20.0


def test_the_shortest_runs_first_and_an_evicted_job_is_last_again():
    """j0 of 1,000 s has the one device at 10 s; 200 jobs of 2 s to 201 s come in the order 201 s, 2 s, 200 s, ..."""
    mixed = [201 - number // 2 if number % 2 == 0 else 2 + number // 2 for number in range(200)]
    rows = [(0, 1, 1000), *((10, 1, seconds) for seconds in mixed)]
    run = simulate(jobs(rows), cluster([1]), EXERCISES["least-left"], SETTING)
    assert run.world.walk[0]["segmented"]
    ends = dict(zip(range(2, 202), accumulate(range(2, 202), initial=10), strict=False))
    starts = run.records["first_start_s"][1:].tolist()
    assert starts == [ends[seconds] for seconds in mixed]
    assert run.records["end_s"][0] == 10 + sum(mixed) + 990
    assert run.records["evictions"].tolist() == [1] + [0] * 200


@pytest.mark.parametrize("place", ENDS[1:])
@pytest.mark.parametrize(("seconds", "start_s"), [(990, 10.0), (991, 1001.0)])
def test_a_lower_priority_deep_in_the_queue_uses_reserved_devices_only_if_it_ends_in_time(
    seconds, start_s, place
):
    """The first to wait, of a higher priority, needs all that is free at 1,000 s, and for a second."""
    special = {0: (10, 5, 1, None, None, 5), place: (10, 2, seconds, None, None, 0)}
    run = play(special, EXERCISES["fit-first"], each=(10, 8, 1, None, None, 0))
    assert run.records["first_start_s"][[2, 2 + place]].tolist() == [1000.0, start_s]


@dataclass(frozen=True)
class Relaxing(Policy):
    """Waits for one machine, but takes what idles elsewhere, or has others step aside for it."""

    aside: bool = False

    def rules(self) -> Rules:
        return Rules(
            order=StaticOrder(),
            relax_locality=not self.aside,
            defragment=Defragment(1.0) if self.aside else None,
        )

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1


@pytest.mark.parametrize("place", ENDS)
def test_a_job_deep_in_the_queue_is_spread_over_exactly_what_idles(place):
    assert play({place: (10, 2, 5)}, Relaxing()).records["first_start_s"][2 + place] == 10.0


@pytest.mark.parametrize("place", ENDS)
def test_a_job_steps_aside_for_one_deep_in_the_queue_that_needs_exactly_what_is_free(place):
    """From 5 s on half of each machine is free, and those that hold the others may move from 300 s on."""
    rows = [(0, 2, 5000), (0, 2, 5), (1, 2, 9000), *[(1000, 8, 1)] * COUNT]
    rows[3 + place] = (1000, 4, 100)
    run = simulate(jobs(rows), cluster([4, 4]), Relaxing(aside=True), SETTING)
    assert run.world.walk[0]["segmented"]
    assert run.records["first_start_s"][3 + place] == 1000.0
    assert run.records["moves"].sum() == 1


@dataclass(frozen=True)
class Reserving(Policy):
    """First come, first served; whichever has waited 100 s has its place reserved, and its equals keep off it."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), reserve=Reserve(100.0))


@pytest.mark.parametrize(
    ("gpus", "seconds", "start_s"),
    [(2, 800, 200.0), (2, 801, 1301.0), (1, 801, 1301.0)],
    ids=["ends in time", "a second late", "one device, a second late"],
)
def test_an_equal_deep_in_the_queue_uses_a_reserved_place_only_if_it_ends_in_time(gpus, seconds, start_s):
    """From 110 s on the machine is kept for j1, at 1,000 s. It and the 300 behind it take a second each."""
    rows = [(0, 6, 1000), (10, 8, 1), *[(20, 8, 1)] * COUNT, (200, gpus, seconds)]
    run = simulate(jobs(rows), cluster([8]), Reserving(), SETTING)
    assert run.world.walk[0]["segmented"]
    assert run.records["first_start_s"][[1, -1]].tolist() == [1000.0, start_s]


@pytest.mark.parametrize("place", ENDS)
def test_a_machine_that_comes_back_is_noticed_by_a_job_deep_in_the_queue(place):
    """The third machine is down until 70 s; of those that wait one needs all its four devices."""
    down = faults([(5, 2, "fail"), (70, 2, "repair")])
    rows = [*BUSY, *((10, 4 if number == place else 13, 5) for number in range(COUNT))]
    run = simulate(
        jobs(rows),
        cluster([4, 4, 4]),
        EXERCISES["nearest-only"],
        replace(SETTING, faults=down),
    )
    assert run.records["first_start_s"][2 + place] == 70.0


@dataclass(frozen=True)
class NearByGain(Policy):
    """Waits for the nearest tier, and has others evicted where their restart costs less than distance would."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByGain(margin=1.0))

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return 0.0


@pytest.mark.parametrize("place", ENDS)
@pytest.mark.parametrize("share", [0.99, 1.01])
def test_a_job_deep_in_the_queue_has_others_evicted_where_distance_costs_more_than_a_restart(share, place):
    """Spread over two machines one second of vgg16 takes longer by slowdown[1] - 1; a restart takes 40 s."""
    setting, racks = Setting(network="static", eviction_s=40.0), cluster([[4, 4], [4, 4]])
    slowdown = simulate(jobs([(0, 3, 10, "vgg16")]), racks, NearByGain(), setting).records["slowdown"][0]
    rows = [(0, 4, 1e5, "resnet50")] * 4 + [(10, 3, 100, "resnet50")] * COUNT
    rows[4 + place] = (10, 3, share * 40.0 / (slowdown[1] - 1.0), "vgg16")
    run = simulate(jobs(rows), racks, NearByGain(), setting)
    assert run.world.walk[0]["segmented"]
    assert (run.records["first_start_s"][4 + place] == 10.0) == (share > 1.0)
    assert run.records["evictions"].sum() == (share > 1.0)


@dataclass(frozen=True)
class Learning(Policy):
    """Holds out for one machine as long as the last of its size waited for one, and 500 s before any has."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), learn_timers=True)

    def timers(self, tiers: Any) -> list[float]:
        return [500.0] * len(tiers)

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier if now < job.queued_since_s + job.delay_timer_s[0] else job.widest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        wake = job.queued_since_s + job.delay_timer_s[0]
        return wake if wake > now else math.inf

    @staticmethod
    def observe(stats: Any, wait: float, gave_up: int, now: float, params: Any) -> float:
        return wait


@pytest.mark.parametrize("place", ENDS)
def test_a_timer_that_has_changed_holds_for_jobs_deep_in_the_queue_too(place):
    """Two jobs of two devices get m2 at 60 s, after 55 s: others of their size give up after that, not at 510 s.

    No event but that of the last job follows, at 66 s.
    """
    rows = [*BUSY, (0, 3, 60), (5, 2, 1e4), (5, 2, 1e4), *[(10, 9, 1)] * COUNT, (66, 9, 1)]
    rows[5 + place] = (10, 2, 5)
    run = simulate(jobs(rows), cluster([[4, 4, 4]]), Learning(), SETTING)
    assert run.world.walk[0]["segmented"]
    assert run.records["first_start_s"][3:5].tolist() == [60.0, 60.0]
    assert run.records["first_start_s"][5 + place] == 66.0


def test_dally_runs_the_gangs_of_a_long_queue_that_distance_hurts_most_first():
    """One machine is free, the other from 1e6 s on. Of vgg16 and resnet50 vgg16 goes first, and least work first."""
    rows = [(0, 4, 1e6), *((10, 4, 300 - number, ("resnet50", "vgg16")[number % 2]) for number in range(299))]
    run = simulate(
        jobs(rows), cluster([[4], [4]]), load_policy("dally:preempt=no"), Setting(network="static")
    )
    slow, fast = sorted(300 - number for number in range(1, 299, 2)), sorted(range(2, 301, 2))
    starts = dict(zip([*slow, *fast], accumulate([*slow, *fast], initial=10), strict=False))
    assert run.records["first_start_s"][1:].tolist() == [starts[300 - number] for number in range(299)]
