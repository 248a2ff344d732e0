"""Mistakes that schedulers in the field have made, each as a scenario small enough to follow by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from berth.errors import InputError
from berth.schedule import Policy, PreemptByGain, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy
from berth.simulate.audit import audit
from berth.simulate.events import event_frame
from berth.simulate.metrics import summarise
from berth.simulate.outcome import require_finished, unfinished_note
from berth.simulate.run import Setting, simulate
from berth.testing import PolicyError, check_policy, cluster, faults, jobs
from berth.testing.policies import EXERCISES, Delay, Rounds


def play(policy: Policy | str, machines: object, rows: list, **setting: Any) -> pl.DataFrame:
    """The audited log of a small scenario in which the network and evictions cost nothing."""
    chosen = EXERCISES[policy] if isinstance(policy, str) else policy
    values = {"network": "off", "eviction_s": 0.0, "eviction_large_s": 0.0, **setting}
    return event_frame(check_policy(chosen, jobs(rows), cluster(machines), Setting(**values)))


def events(log: pl.DataFrame, event: str) -> list[tuple[float, str]]:
    return log.filter(pl.col("event") == event).select("time_s", "job").rows()


def starts(log: pl.DataFrame) -> list[tuple[float, str, list[str]]]:
    return log.filter(pl.col("event") == "started").select("time_s", "job", "places").rows()


@dataclass(frozen=True)
class GangsGain(Policy):
    """Single-device jobs are moved out of the way of gangs; no gang is spread."""

    patience_s: float = 0.0

    def rules(self) -> Rules:
        by_gain = PreemptByGain(margin=1.0, min_run_s=1.0, eviction_interval_s=self.patience_s)
        return Rules(order=StaticOrder(), preempt=by_gain)

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return 1000.0 if job.gpus > 1 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return 1.0 if victim.gpus < job.gpus else math.inf


@pytest.mark.slow
def test_two_preemptors_never_count_the_same_victim():
    # Both gangs would fit if each could have the place of the same victims.
    log = play(GangsGain(), [4], [(0, 1, 500), (0, 1, 500), (0, 2, 500), (10, 3, 50), (10, 3, 50)])
    assert [job for time, job, _ in starts(log) if time == 10.0] == ["j3"]
    assert [job for time, job in events(log, "evicted") if time == 10.0] == ["j0", "j1", "j2"]


def test_capacity_that_shrinks_under_running_jobs_is_never_handed_out():
    # m0 is drained while j0 holds half of it and the other half is free: nothing more may start there.
    rows = [(0, 2, 100), (0, 4, 100), (10, 2, 10), (150, 4, 10)]
    down = faults([(5, 0, "drain"), (200, 0, "undrain")])
    log = play("fit-first", [4, 4], rows, faults=down)
    assert starts(log)[2:] == [(100.0, "j2", ["m1:2"]), (150.0, "j3", ["m1:4"])]


def test_a_job_on_a_drained_machine_is_not_evicted_by_reconsidering():
    # j0 is the least deserving and offers its place to j2; that is on a drained machine, so it keeps it.
    down = faults([(5, 1, "drain"), (300, 1, "undrain")])
    log = play("least-left", [4, 4], [(0, 4, 200), (0, 4, 100), (20, 4, 20)], faults=down)
    assert starts(log)[1] == (0.0, "j0", ["m1:4"])
    assert events(log, "evicted") == [(20.0, "j1")]


@pytest.mark.slow
def test_a_freed_share_is_not_stolen_and_no_job_thrashes():
    # Both gangs want the machine; each could evict the other forever. The budget ends it.
    @dataclass(frozen=True)
    class Greedy(GangsGain):
        @staticmethod
        def cost(victim: Any, job: Any, now: float, params: Any) -> float:
            return 1.0

    arrivals = [(float(at), 1, 1.0) for at in range(2, 200, 2)]  # so that there is always an event
    log = play(Greedy(patience_s=3600.0), [4], [(0, 4, 100), (1, 4, 100), *arrivals])
    evicted = [job for _, job in events(log, "evicted")]
    assert max(evicted.count(job) for job in ("j0", "j1")) <= 1


@pytest.mark.slow
def test_a_victims_rest_that_ends_is_a_moment_of_its_own():
    # No job arrives or ends at 1.0 s, when j0 has run long enough, nor at 101.0 s, when its budget is over.
    rows = [(0, 1, 500), (0.5, 4, 50), (60, 4, 50)]
    log = play(GangsGain(patience_s=100.0), [4], rows)
    assert events(log, "evicted") == [(1.0, "j0"), (101.0, "j0")]
    assert [(time, job) for time, job, _ in starts(log) if job != "j0"] == [(1.0, "j1"), (101.0, "j2")]


@pytest.mark.slow
def test_what_is_held_for_one_is_not_taken_by_who_moves_up():
    # j2 is spread over both machines. At 300 s m0 has room for it, but m0 is held for j3, which has waited
    # longest and can start there when j2 ends.
    rows = [(0, 3, 300), (0, 3, 10_000), (0, 2, 1000), (1, 4, 100)]
    log = play("look-ahead", [4, 4], rows, eviction_s=40.0)
    assert sorted(starts(log)[2][2]) == ["m0:1", "m1:1"]
    assert events(log, "moved") == []
    assert starts(log)[3] == (1000.0, "j3", ["m0:4"])


def test_who_preempts_is_placed_where_it_preempted():
    # Devices are free in the other rack too; the gang that evicts must start inside the rack it emptied.
    rows = [(0, 1, 900), (0, 1, 900), (0, 3, 900), (0, 3, 900), (10, 8, 100)]
    log = play(GangsGain(), [[4, 4], [4, 4]], rows)
    time, job, places = starts(log)[4]
    assert (time, job) == (10.0, "j4")
    racks = {{"m0": 0, "m1": 0, "m2": 1, "m3": 1}[place.split(":")[0]] for place in places}
    assert len(racks) == 1
    assert log.filter((pl.col("job") == "j4") & (pl.col("event") == "started"))["tier"].to_list() == ["rack"]


def test_one_member_that_finds_a_place_does_not_hold_it_for_its_gang():
    # Two devices are free, the gang asks for four: it holds nothing, and a single device passes.
    log = play("fit-first", [4], [(0, 2, 100), (1, 4, 100), (2, 1, 10)])
    assert starts(log) == [(0.0, "j0", ["m0:2"]), (2.0, "j2", ["m0:1"]), (100.0, "j1", ["m0:4"])]


def test_two_gangs_never_wait_for_each_other():
    # Devices come free one by one. If gangs took what there is, each would end up with half of them.
    singles = [(0, 1, 10), (0, 1, 20), (0, 1, 30), (0, 1, 40)]
    log = play("fit-first", [2, 2], [*singles, (1, 4, 10), (1, 4, 10)])
    assert [(time, job) for time, job, _ in starts(log)[4:]] == [(40.0, "j4"), (50.0, "j5")]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["least-left", "everything", "rounds", "two-queues"])
def test_a_gang_that_is_evicted_leaves_whole_and_comes_back_whole(policy):
    # The audit in `play` counts every device; here it only matters that evictions of gangs do happen.
    rows = [(0, 6, 400), (30, 4, 60), (60, 2, 20), (61, 8, 30), (300, 6, 10)]
    log = play(policy, [4, 4], rows, eviction_s=5.0)
    for row in log.filter(pl.col("event") == "started").iter_rows(named=True):
        assert sum(int(place.split(":")[1]) for place in row["places"]) == row["gpus"]
    assert set(log.filter(pl.col("event") == "finished")["job"]) == {"j0", "j1", "j2", "j3", "j4"}


def test_devices_of_unknown_distance_are_never_near():
    # Machines of one device each and nothing known between them: a gang is spread, and says so.
    log = play("nearest-only", [1, 1, 1, 1], [(0, 2, 10)])
    assert log.filter(pl.col("event") == "started")["tier"].to_list() == ["network"]
    # Where a real near place exists, it comes first, however the machines are sorted.
    log = play("fit-first", [[1], [1], [2]], [(0, 2, 10)])
    assert starts(log)[0][2] == ["m2:2"]


@pytest.mark.slow
def test_a_refused_offer_does_not_reset_the_timer():
    # j2 holds out 300 s for one machine. Offers of two halves come at 20, 40, ... and are refused; it must
    # still take the first one after 300 s, not 300 s after the last refusal.
    halves = [(float(at), 1, 9.0) for at in range(20, 400, 20)]
    rows = [(0, 3, 1000), (0, 3, 1000), (10, 2, 100), *halves]
    log = play(Delay(first_s=300.0), [4, 4], rows)
    assert [time for time, job, _ in starts(log) if job == "j2"] == [310.0]


def test_the_same_timer_fires_by_itself_when_nothing_else_happens():
    log = play(Delay(first_s=300.0), [4, 4], [(0, 3, 1000), (0, 3, 1000), (10, 2, 100)])
    assert [time for time, job, _ in starts(log) if job == "j2"] == [310.0]


@pytest.mark.parametrize("policy", ["least-left", "rounds", "everything", "delay", "backfill", "strict"])
def test_a_job_that_no_longer_fits_anywhere_is_named_and_nothing_hangs(policy):
    setting = Setting(network="off", faults=faults([(5, 0, "fail")]), log=True)
    run = simulate(jobs([(0, 2, 50), (10, 4, 10)]), cluster([4, 2]), EXERCISES[policy], setting)
    assert run.unfinished == ("j1",)
    assert audit(run).violations == ()
    assert summarise(run).as_json()["unfinished"] == ["j1"]
    assert "1 job never finishes (j1): machines that they need stay down" in (unfinished_note(run) or "")
    with pytest.raises(InputError, match="1 job never finishes"):
        require_finished(run)


@pytest.mark.slow
def test_rounds_no_longer_than_a_restore_end_in_a_detected_livelock():
    setting = Setting(network="off", eviction_s=60.0, log=True)
    rows = [(0, 1, 50), (0, 1, 100), (0, 1, 100)]
    run = simulate(jobs(rows), cluster([1]), Rounds(period_s=60.0), setting)
    assert run.livelock
    assert run.unfinished == ("j1", "j2")
    assert audit(run).violations == ()
    assert "no progress is made" in (unfinished_note(run) or "")
    with pytest.raises(PolicyError, match="no progress is made"):
        check_policy(Rounds(period_s=60.0), jobs(rows), cluster([1]), setting)


def test_rounds_that_get_nothing_done_go_on_while_something_may_yet_happen():
    # For thirty days both jobs restore in turn on one machine; then the other is put back.
    back_s = 30 * 86_400.0
    setting = Setting(
        network="off", eviction_s=60.0, faults=faults([(0, 1, "drain"), (back_s, 1, "undrain")])
    )
    run = simulate(jobs([(0, 1, 100), (0, 1, 100)]), cluster([1, 1]), Rounds(period_s=60.0), setting)
    assert not run.livelock
    assert run.unfinished == ()
    assert run.records["end_s"].min() > back_s


def test_rounds_hardly_longer_than_a_restore_are_slow_and_not_a_livelock():
    setting = Setting(network="off", eviction_s=60.0)
    run = simulate(jobs([(0, 1, 100), (0, 1, 100)]), cluster([1]), Rounds(period_s=60.01), setting)
    assert not run.livelock
    assert run.unfinished == ()


@dataclass(frozen=True)
class Restless(Policy):
    """Asks to be woken a moment later, forever."""

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        return now


@pytest.mark.slow
def test_a_moment_too_short_to_count_still_passes():
    # 1e-6 s added to 1e11 s is nothing: the clock must move on all the same.
    rows = [(0, 1, 1e11), (1e11, 1, 5e-5), (1e11, 1, 1.0)]
    assert len(events(play(Restless(), [1], rows), "finished")) == 3


@dataclass(frozen=True)
class Impatient(Policy):
    """Asks to be woken at a moment that is past: a natural slip, and once an endless loop."""

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        return job.arrival_s


@pytest.mark.slow
def test_a_wake_time_in_the_past_is_ignored():
    assert len(starts(play(Impatient(), [2], [(0, 2, 100), (1, 2, 100)]))) == 2


def test_a_moment_that_is_now_but_for_rounding_comes_once():
    # 0.1 x 3 is not 0.3: the timer of j1 runs out a hair after the moment it asked for.
    log = play(Delay(first_s=0.2), [2, 2], [(0, 1, 9.0), (0, 1, 9.0), (0.1, 2, 1.0)])
    assert starts(log)[2][1] == "j2"


def test_rounds_go_on_by_the_clock_whatever_the_period():
    log = play(Rounds(period_s=0.1), [1], [(0, 1, 2.0), (0, 1, 2.0)])
    assert len(events(log, "finished")) == 2


def test_mixed_devices_are_not_added_up_to_hold_a_place():
    # m0 has four devices of each of two types: no place for a gang of eight, now or ever. m1 is held instead,
    # and single devices go on using m0.
    machines = [{"V100": 4, "P100": 4}, {"V100": 8}]
    rows = [(0, 8, 100), (1, 8, 100), (2, 1, 500), (3, 4, 500)]
    log = play("near-backfill", machines, rows)
    assert [(time, job) for time, job, _ in starts(log)] == [
        (0.0, "j0"),
        (2.0, "j2"),
        (3.0, "j3"),
        (100.0, "j1"),
    ]


def test_restoring_that_is_cut_short_costs_only_what_it_took():
    # j0 is evicted at 10, restores from 20 on for 40 s, and is evicted again after 5 s of it.
    rows = [(0, 1, 100), (10, 1, 10), (25, 1, 10)]
    run = check_policy(
        EXERCISES["least-left"], jobs(rows), cluster([1]), Setting(network="off", eviction_s=40.0, log=True)
    )
    assert run.accounts["lost_gpu_s"].tolist() == [45.0, 0.0, 0.0]
    assert run.records["end_s"].tolist() == [165.0, 20.0, 35.0]


def test_no_job_moves_to_a_shape_that_is_not_better():
    rows = [(0, 1, 10)] * 9 + [(0, 1, 20), (0, 1, 30), (0, 8, 10)]  # 8 devices lie as 3 + 3 + 2 either way
    setting = Setting(network="static", eviction_s=0.0, eviction_large_s=0.0, log=True)
    run = check_policy(EXERCISES["even-shapes"], jobs(rows), cluster([3, 4, 4]), setting)
    assert run.records["moves"].sum() == 0


def test_the_best_shape_of_a_gang_is_one_of_devices_of_one_type():
    """A machine with two A100 and three P100 does not hold five: the most balanced gang has three of one type."""
    machines = [{"A100-40": 2, "P100": 3}, {"P100": 3}, {"V100": 1, "P100": 3}]
    setting = Setting(network="static", congestion=10.0)
    rows = [(0, 1, 10), (0, 1, 10), (0, 1, 10), (0, 7, 1)]
    log = event_frame(check_policy(load_policy("berth"), jobs(rows), cluster(machines), setting))
    gang = log.filter((pl.col("event") == "started") & (pl.col("gpus") == 7))
    assert gang["reason"].to_list() == ["nearest"]


def test_a_starved_job_comes_back_by_itself_when_nothing_else_happens():
    # Both sink at 3,250 s of service. j1 waits from 6,500 on, has waited 3,250 s before and ran as long: at twice
    # that it is first again, at 9,750. No job arrives or ends then, and j0 would sink only at 10,450.
    log = play(load_policy("tiresias:starvation=2"), [1], [(0, 1, 20_000), (0, 1, 20_000)])
    assert events(log, "evicted")[:3] == [(3250.0, "j0"), (6500.0, "j1"), (9750.0, "j0")]


def test_devices_reserved_for_another_job_do_not_count_as_coming_free():
    # m0 is held for j3, which needs all of it. j4 can't have it either: it takes the two single devices at once.
    rows = [(0, 1, 50), (0, 1, 50), (0, 1, 5000), (1, 4, 1000), (60, 2, 20_000)]
    policy = load_policy("berth:order=fifo,hold_after=10s,hold_share=1000,defragment=0,move_up=0,others=0")
    log = play(policy, [4, 1, 1], [(*row, "resnet50") for row in rows], network="static")
    assert starts(log)[-2:] == [(60.0, "j4", ["m1:1", "m2:1"]), (5000.0, "j3", ["m0:4"])]


def test_no_job_waits_for_a_shape_made_of_several_device_types():
    # Five A40s are free as 4 + 1. When j0 leaves its A30s at 91 s, 3 + 2 would be free, of two types: no shape.
    machines = [[{"A30": 4}, {"A40": 4}, {"A40": 4}, {"A40": 1}]]
    rows = [(0, 4, 100), (0, 4, 90_000), (2, 5, 1000)]
    log = play("even-shapes", machines, [(*row, "vgg16") for row in rows], network="static", congestion=20.0)
    assert starts(log)[2] == (2.0, "j2", ["m2:4", "m3:1"])


@pytest.mark.parametrize(
    ("priorities", "moves"),
    [((0, 0, 0), [1, 0, 0]), ((5, 0, 0), [0, 1, 0]), ((5, 5, 0), [0, 0, 0]), ((5, 5, 9), [1, 0, 0])],
)
def test_no_job_moves_aside_for_a_lower_priority(priorities, moves):
    # Both machines have two free devices; j2 fits when one of the two gangs moves to the other machine.
    def give(world: Any, clock: Any) -> int:
        world.jobs["priority"] = priorities
        return 1_000_000

    setting = Setting(network="off", eviction_s=0.0)
    trace = jobs([(0, 2, 9000), (0, 2, 9000), (400, 4, 100)])
    run = simulate(trace, cluster([4, 4]), EXERCISES["step-aside"], setting, watch=give)
    assert run.records["moves"].tolist() == moves
    assert run.records["first_start_s"][2] == (400.0 if sum(moves) else 9000.0)


def test_claims_that_do_not_suffice_are_rolled_back():
    # Every machine has one free device. On m3 the single job could move, the pair could not: so neither does.
    rows = [(0, 3, 9000), (0, 3, 9000), (0, 3, 9000), (0, 2, 9000), (0, 1, 9000), (400, 4, 100)]
    setting = Setting(network="off", eviction_s=0.0)
    run = check_policy(EXERCISES["step-aside"], jobs(rows), cluster([4, 4, 4, 4]), setting)
    assert run.records["moves"].sum() == 0
    assert run.records["first_start_s"][5] == 9000.0
    assert run.world.hosts["free"].tolist() == [4, 4, 4, 4]


def test_who_has_had_room_made_for_it_has_left_the_queue():
    # j2 has room made for it at 400; j3 waits behind it, and has the same place when j2 is done with it.
    log = play("step-aside", [4, 4], [(0, 2, 9000), (0, 2, 9000), (400, 4, 100), (400, 4, 100)])
    assert [(time, job) for time, job, _ in starts(log)[2:]] == [(400.0, "j2"), (500.0, "j3")]


@dataclass(frozen=True)
class Beckons(Policy):
    """Accepts the nearest tier only, and asks to be woken at once, every time."""

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def wake(job: Any, now: float, params: Any) -> float:
        return now


@pytest.mark.slow
def test_a_policy_that_asks_to_be_woken_at_once_forever_ends_with_its_name():
    # j0 needs the four devices of m0, which stays down; six are free elsewhere. Nothing runs.
    setting = Setting(network="off", log=True, faults=faults([(0, 0, "fail")]))
    run = simulate(jobs([(1, 4, 100)]), cluster([4, 3, 3]), Beckons(), setting, name="beckons")
    assert (run.unfinished, run.livelock) == (("j0",), "waking")
    assert audit(run).violations == ()
    note = unfinished_note(run) or ""
    assert note.startswith("beckons: 1 job never finishes (j0): stopped at 1")
    assert "its `wake` asks to be called again and again" in note


@pytest.mark.slow
@pytest.mark.parametrize("to_come", [(), ((1e9, 1, 10),)])
def test_moments_a_microsecond_apart_do_not_keep_a_run_from_its_end(to_come):
    # m0 is up and busy for a year while j1 waits for it: 3e13 moments would come first.
    rows = [(0, 4, 3e7), (1, 4, 100), *to_come]
    run = simulate(
        jobs(rows), cluster([4, 3, 3]), Beckons(), Setting(network="off", log=True), name="beckons"
    )
    assert run.livelock == "waking"
    assert run.unfinished[:2] == ("j0", "j1")
    assert audit(run).violations == ()


@pytest.mark.slow
def test_a_policy_that_looks_every_second_for_hours_is_not_stopped():
    @dataclass(frozen=True)
    class Polls(Beckons):
        @staticmethod
        def allowed_tier(job: Any, now: float, params: Any) -> int:
            return job.widest_tier if now - job.queued_since_s >= 30_000.0 else job.nearest_tier

        @staticmethod
        def wake(job: Any, now: float, params: Any) -> float:
            return now + 1.0

    setting = Setting(network="off", faults=faults([(0, 0, "fail")]))
    run = simulate(jobs([(1, 4, 100)]), cluster([[4, 3], [3]]), Polls(), setting)
    assert run.unfinished == ()
    assert run.records["first_start_s"].tolist() == [30_001.0]
