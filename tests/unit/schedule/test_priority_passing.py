"""A job that does not fit may be passed by its equals, but by a lower priority only where that does not delay it."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from berth.schedule.policies.registry import load_policy
from berth.simulate.events import event_frame
from berth.simulate.run import Setting
from berth.testing import check_policy, cluster, faults, jobs

# they let jobs pass a job that does not fit, and preempt nothing by order; the default where no job can be preempted
PASSING = [
    *(
        "fit-first",
        "preferred",
        "required",
        "berth",
        "berth:order=network",
        "berth:order=fifo",
        "dally",
        "lwf",
    ),
]
HALF_BUSY = (0, 4, 100)  # of eight devices


def job(arrival: float, gpus: int, seconds: float, priority: int = 0) -> tuple:
    return (arrival, gpus, seconds, None, None, priority)


def started(policy: str, rows: list, machines: object = (8,)) -> dict[str, tuple[float, str]]:
    """When each job first started, and why there."""
    fixed = policy == "berth"
    setting = Setting(
        network="off", eviction_s=0.0, eviction_large_s=0.0, log=True, preemptible=0.0 if fixed else 1.0
    )
    run = check_policy(load_policy(policy), jobs(rows), cluster(list(machines)), setting)
    log = event_frame(run)
    starts = log.filter(log["event"] == "started").select("job", "time_s", "reason").rows()
    return {name: (time_s, reason) for name, time_s, reason in reversed(starts)}


@pytest.mark.parametrize("policy", PASSING)
def test_a_lower_priority_does_not_delay_a_job_that_does_not_fit(policy):
    times = started(policy, [HALF_BUSY, job(1, 8, 10, priority=5), job(2, 4, 1000)])
    assert times["j1"][0] == 100.0
    assert times["j2"][0] == 110.0


@pytest.mark.parametrize("policy", PASSING)
def test_a_lower_priority_passes_where_it_ends_in_time(policy):
    times = started(policy, [HALF_BUSY, job(1, 8, 10, priority=5), job(2, 4, 98)])
    assert times["j1"][0] == 100.0
    assert times["j2"] == (2.0, "backfilled")


@pytest.mark.parametrize("policy", PASSING)
def test_a_lower_priority_takes_what_the_first_will_not_need(policy):
    times = started(policy, [HALF_BUSY, job(1, 6, 10, priority=5), job(2, 2, 1000), job(3, 2, 1000)])
    assert times["j1"][0] == 100.0
    assert times["j2"] == (2.0, "backfilled")
    assert times["j3"][0] == 110.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", PASSING)
def test_equal_priorities_pass_as_they_always_did(policy):
    rows = [HALF_BUSY, (1, 8, 10), (2, 4, 1000)]
    assert started(policy, rows)["j2"][0] == 2.0
    for priority in (-3, 7):
        same = [(*row, None, None, priority) for row in rows]
        assert started(policy, same) == started(policy, rows)


def test_only_lower_priorities_are_kept_off_the_place():
    # j2 is the equal of j1 and may pass it; j3 is not and waits, though as many devices are free for it
    rows = [(0, 6, 100), job(1, 8, 10, priority=5), job(2, 1, 1000, priority=5), job(3, 1, 1000)]
    times = started("fit-first", rows)
    assert times["j2"][0] == 2.0
    assert times["j3"][0] == times["j1"][0] + 10


def test_what_can_never_start_now_keeps_nothing_from_others():
    # m0 is drained: j0 needs both machines, and no end of a job brings m0 back
    setting = Setting(network="off", log=True, faults=faults([(0.5, 0, "drain"), (500, 0, "undrain")]))
    rows = [job(1, 8, 10, priority=5), job(2, 4, 1000)]
    run = check_policy(load_policy("fit-first"), jobs(rows), cluster([4, 4]), setting)
    starts = {name: run.records[row]["first_start_s"] for row, name in enumerate(["j0", "j1"])}
    assert starts["j1"] == 2.0


@pytest.mark.parametrize("policy", PASSING)
def test_of_places_that_come_free_together_the_one_is_reserved_that_keeps_least_from_others(policy):
    # both machines come free at 100 s; m1 is full until then, so reserving it leaves the idle half of m0 to j3
    rows = [(0, 2, 100), (0, 4, 100), job(1, 4, 10, priority=5), job(2, 1, 1000)]
    times = started(policy, rows, machines=(4, 4))
    assert times["j2"][0] == 100.0
    assert times["j3"][0] == 2.0


def test_a_place_is_reserved_where_what_idles_is_not_needed_at_all():
    # of m0 three devices idle and five come free at 100 s, so it has four to spare then; of m1, two and two, none
    rows = [(0, 2, 100), (0, 5, 100), job(1, 4, 10, priority=5), job(2, 2, 1000), job(3, 3, 1000)]
    times = started("required", rows, machines=(8, 4))
    assert [times[name][0] for name in ("j2", "j3", "j4")] == [100.0, 2.0, 3.0]


@pytest.mark.parametrize("policy", PASSING)
def test_all_that_ends_at_the_reserved_moment_counts_as_spare(policy):
    # j0 alone makes enough room for j2 at 100 s, but j1 ends at that moment too: j3 delays no other job
    rows = [(0, 3, 100), (0, 3, 100), job(1, 4, 10, priority=5), job(2, 2, 1000)]
    times = started(policy, rows)
    assert times["j2"][0] == 100.0
    assert times["j3"] == (2.0, "backfilled")


@pytest.mark.parametrize("policy", [*PASSING, "easy"])
def test_all_machines_of_the_job_that_ends_count_as_spare(policy):
    # of j0's two machines one would do for j1, beside the idle one; j2 takes what is left then
    rows = [(0, 8, 100), job(1, 8, 10, priority=5), job(2, 4, 1000)]
    times = started(policy, rows, machines=(4, 4, 4))
    assert times["j1"][0] == 100.0
    assert times["j2"] == (2.0, "backfilled")


def test_ends_that_differ_by_rounding_alone_are_at_the_same_moment():
    # 0.85 + 76.85 is 77.7, and a little less in floating point
    rows = [(0, 3, 77.7), (0.85, 3, 76.85), job(1.46, 4, 10, priority=5), job(2, 2, 1000)]
    times = started("fit-first", rows)
    assert times["j2"][0] == pytest.approx(77.7, abs=1e-6)
    assert times["j3"] == (2.0, "backfilled")


def test_devices_outside_the_reserved_group_stay_free_for_all():
    # j2 needs a whole machine: m0 at 100 s. j3 goes to m1, which is not reserved.
    rows = [(0, 2, 100), (0, 3, 1000), job(1, 4, 10, priority=5), job(2, 1, 1000)]
    times = started("required", rows, machines=(4, 4))
    assert times["j2"][0] == 100.0
    assert times["j3"][0] == 2.0


def test_the_job_with_the_reservation_may_still_spread_over_what_idles():
    # one device is free on each machine; j3 would wait long for two on one, and loses nothing by spreading
    rows = [(0, 3, 9000), (0, 3, 9000), job(0.5, 8, 10), job(1, 2, 10, priority=5)]
    times = started("berth:order=network,defragment=0", rows, machines=(4, 4))
    assert times["j3"] == (1.0, "cheaper-than-waiting")


# Where order preempts, and some jobs can't be preempted

BARE = Setting(network="off", eviction_s=0.0, eviction_large_s=0.0, log=True)


def mixed_starts(rows: list, preemptible: list[int], machines: list, policy: str = "berth") -> list[float]:
    trace = jobs(rows)
    trace = replace(trace, frame=trace.frame.with_columns(pl.Series("preemptible", preemptible, pl.Int32)))
    run = check_policy(load_policy(policy), trace, cluster(machines), BARE)
    return run.records["first_start_s"].tolist()


@pytest.mark.parametrize("policy", ["berth", "srtf"])
@pytest.mark.parametrize("seconds", [1000, 98])
def test_a_lower_priority_that_will_not_give_way_delays_no_higher_one(policy, seconds):
    # j0 runs beside and can be preempted; j1 holds half of m1 until 100 s; j3 could not be evicted for j2
    rows = [(0, 2, 5000), (0, 4, 100), job(1, 8, 10, priority=5), job(2, 4, seconds)]
    times = mixed_starts(rows, [1, 0, 1, 0], [2, 8], policy)
    assert times[2] == 100.0
    assert times[3] == (110.0 if seconds == 1000 else 2.0)


@pytest.mark.parametrize("policy", ["berth", "srtf"])
def test_a_lower_priority_that_gives_way_uses_the_reserved_place_meanwhile(policy):
    rows = [(0, 2, 5000), (0, 4, 100), job(1, 8, 10, priority=5), job(2, 4, 1000), job(3, 4, 1000)]
    times = mixed_starts(rows, [1, 0, 1, 0, 1], [2, 8], policy)
    assert times[2] == 100.0
    assert times[4] == 3.0


@pytest.mark.parametrize("policy", ["berth", "srtf"])
def test_a_place_is_reserved_also_where_others_give_way_but_not_enough(policy):
    # j2 takes j1's devices at 100 s at the latest, when j0 ends; until then j1 keeps them, and j3 may not take them
    rows = [(0, 4, 100), (0, 4, 5000), job(1, 8, 10, priority=5), job(2, 4, 1000)]
    times = mixed_starts(rows, [0, 1, 1, 0], [8], policy)
    assert times[2] == 100.0
    assert times[3] >= 110.0


def test_a_place_is_held_from_equal_and_lower_priorities_only():
    # j1 has waited longest and its place is held: j3, of higher priority, takes it, and j2 does not
    policy = "berth:order=fifo,hold_after=0s,hold_share=1000000000"
    rows = [(0, 6, 100), (1, 8, 10), (2, 2, 1000), job(3, 2, 1000, priority=5)]
    times = mixed_starts(rows, [0, 0, 0, 0], [8], policy)
    assert times[3] == 3.0
    assert times[2] > 100.0


def test_no_job_is_evicted_where_the_devices_go_to_no_other():
    # the place of j2 is held: what j1 returns when j2 looks for one is taken again
    policy = "berth:hold_after=0s,hold_share=1000000000"
    rows = [(0, 1, 100), (0, 2, 1000), (1, 4, 50), (10, 1, 50_000)]
    log = event_frame(check_policy(load_policy(policy), jobs(rows), cluster([4]), BARE))
    evicted = log.filter(log["event"] == "evicted").select("job", "time_s").rows()
    assert evicted == [("j1", 100.0)]  # when j2 starts
