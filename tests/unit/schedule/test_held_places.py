"""Places reserved for the first job that does not fit: others use them only as far as that delays no job."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from berth.schedule.policies.registry import load_policy
from berth.simulate.events import event_frame
from berth.simulate.run import Setting, simulate
from berth.testing import check_policy, cluster, faults, jobs
from berth.testing.policies import EXERCISES

# m0 has two free devices until its other two come free at 100 s; m1 and m2 have one free device each.
HALF_FREE = [(0, 2, 100), (0, 3, 1000), (0, 3, 1000)]
WHOLE_MACHINE = (1, 4, 10)


def started(
    rows: list, policy: str = "near-backfill", machines: object = (4, 4, 4), **more: Any
) -> dict[str, float]:
    """When each job started last."""
    setting = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, **more)
    log = event_frame(check_policy(EXERCISES[policy], jobs(rows), cluster(list(machines)), setting))
    return dict(log.filter(log["event"] == "started").select("job", "time_s").rows())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("duration", "start"),
    [(50, 2.0), (98, 2.0), (99, 110.0)],  # j3 gets its machine at 100 s, and has it for 10 s
    ids=["ends long before", "ends just then", "would end a second late"],
)
def test_who_fits_nowhere_else_passes_through_a_held_machine_if_it_ends_in_time(duration, start):
    times = started([*HALF_FREE, WHOLE_MACHINE, (2, 2, duration)])
    assert times["j3"] == 100.0
    assert times["j4"] == start


def test_devices_that_the_first_will_not_need_are_lent_once():
    # j0 keeps three of eight devices until 100 s; j1 wants six then, so two of the eight are to spare.
    rows = [(0, 3, 100), (1, 6, 10), (2, 2, 1000), (3, 2, 1000)]
    assert started(rows, machines=(8,)) == {"j0": 0.0, "j1": 100.0, "j2": 2.0, "j3": 110.0}


def test_what_was_held_for_the_first_job_of_all_is_given_back_when_it_starts_elsewhere():
    # m0 fails under j0, for which m1 is held; when m0 is back j0 goes there and j2 takes what was held.
    rows = [(0, 4, 100), (0, 2, 200), (20, 2, 500)]
    times = started(rows, machines=(4, 4), faults=faults([(10, 0, "fail"), (60, 0, "repair")]))
    assert times == {"j0": 60.0, "j1": 0.0, "j2": 60.0}


@pytest.mark.parametrize("durations", list(permutations([400, 100, 300, 200]))[::3])
def test_a_place_is_held_until_enough_of_what_runs_has_ended_in_whatever_order_it_began(durations):
    # Of nine devices one is free; with those of the two jobs that end first the gang of five has its place.
    running = [(0, 2, duration) for duration in durations]
    rows = [*running, (1, 5, 10), (2, 1, 199), (3, 1, 100)]
    times = started(rows, machines=(9,))
    assert times["j4"] == 200.0
    assert times["j5"] > 200.0
    assert times["j6"] == 3.0


def test_a_machine_that_is_drained_is_not_the_one_that_is_held():
    # m0 would be free at 50 s but is drained; j2 gets m1 at 100 s, and j3 may not take it before.
    rows = [(0, 4, 50), (0, 2, 100), (20, 4, 10), (30, 2, 1000)]
    times = started(rows, machines=(4, 4), faults=faults([(10, 0, "drain"), (500, 0, "undrain")]))
    assert (times["j2"], times["j3"]) == (100.0, 110.0)


# j1 needs all three machines once j0 ends; j2 passes, and both cross the up-link of the middle machine.
PASSED = [(0, 6, 1000, "vgg16"), (10, 12, 100, "vgg16"), (20, 5, 300, "vgg16")]


def records_under(policy: str, network: str):
    setting = Setting(network=network, congestion=20.0)
    return simulate(jobs(PASSED), cluster([4, 4, 4]), load_policy(policy), setting).records


def test_without_a_network_who_passes_never_delays_the_first_who_waits():
    strict, easy = records_under("fifo", "off"), records_under("easy", "off")
    assert easy["first_start_s"].tolist() == [0.0, 1000.0, 20.0]
    assert strict["first_start_s"][1] == easy["first_start_s"][1]


def test_on_shared_links_the_first_is_delayed_by_no_more_than_who_passes_overlaps():
    strict, easy = records_under("fifo", "on"), records_under("easy", "on")
    overlap_s = easy["end_s"][2] - easy["first_start_s"][2]
    delay_s = easy["first_start_s"][1] - strict["first_start_s"][1]
    assert easy["first_start_s"][2] == 20.0
    assert 0.0 < delay_s <= overlap_s
    assert easy["first_start_s"][1] == easy["end_s"][0]  # it takes the place the moment that comes free
