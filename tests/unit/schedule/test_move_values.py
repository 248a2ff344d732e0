"""Migration, defragmentation and reservations: the figure at which each begins to pay, and what it costs then.

Without a network the policies here say themselves what a place saves. Clusters are flat: machines, and one network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from berth.schedule import Defragment, Migrate, Policy, Reserve, Rules, StaticOrder
from berth.simulate.events import event_frame
from berth.simulate.run import Run, Setting
from berth.testing import check_policy, cluster, faults, jobs


def play(policy: Policy, rows: list, machines: Any, **setting: Any) -> Run:
    chosen = {"network": "off", "eviction_s": 40.0, "eviction_large_s": 60.0, "log": True, **setting}
    return check_policy(policy, jobs(rows), cluster(machines), Setting(**chosen))


def moves(run: Run) -> list[tuple[float, str, list[str]]]:
    """When which job moved where."""
    log = event_frame(run)
    found = log.filter(log["event"] == "moved").select("time_s", "job", "places").rows()
    return [(at, job, sorted(places)) for at, job, places in found]


def places(run: Run, job: str) -> list[str]:
    log = event_frame(run)
    return sorted(log.filter((log["event"] == "started") & (log["job"] == job))["places"][0])


# Migration


@dataclass(frozen=True)
class Moves(Policy):
    """A place one tier nearer saves `saves_s`."""

    saves_s: float = 0.0
    times: float = 1.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), migrate=Migrate(self.times))

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return params.saves_s


# Single devices fill m0 and m1, of two; one of each ends at 100 s, where j5 starts spread. m2 comes free at 300 s.
SPREAD = [(0, 1, 100), (0, 1, 5000), (0, 1, 100), (0, 1, 5000), (0, 2, 300), (0, 2, 1000)]


@pytest.mark.parametrize(
    ("saves_s", "times", "moved"),
    [(40.0, 1.0, False), (41.0, 1.0, True), (80.0, 2.0, False), (81.0, 2.0, True), (1e9, 0.0, False)],
)
def test_a_spread_job_moves_where_that_saves_more_than_moving_costs(saves_s, times, moved):
    run = play(Moves(saves_s, times), SPREAD, [2, 2, 2])
    assert places(run, "j5") == ["m0:1", "m1:1"]
    assert moves(run) == ([(300.0, "j5", ["m2:2"])] if moved else [])
    # it restores for 40 s after its move, and no work is lost
    assert run.records["end_s"][5] == (1140.0 if moved else 1100.0)
    assert run.records["moves"].tolist() == [0, 0, 0, 0, 0, int(moved)]
    assert run.records["evictions"].tolist() == [0] * 6
    assert run.accounts["lost_gpu_s"][5] == (80.0 if moved else 0.0)


def test_a_large_gang_pays_more_for_a_move():
    # Nine devices: a restart of 60 s.
    rows = [(0, 5, 100), (0, 4, 5000), (0, 5, 100), (0, 4, 5000), (0, 9, 300), (0, 9, 1000)]
    assert moves(play(Moves(60.0), rows, [9, 9, 9])) == []
    run = play(Moves(61.0), rows, [9, 9, 9])
    assert moves(run) == [(300.0, "j5", ["m2:9"])]
    assert run.records["end_s"][5] == 1160.0


def test_service_is_counted_at_the_tier_where_it_was_had():
    run = play(Moves(1e6), SPREAD, [2, 2, 2])
    assert run.accounts["tier_gpu_s"][5][:2].tolist() == [2 * 840.0, 2 * 200.0]


def test_a_job_on_one_machine_stays():
    run = play(Moves(1e6), [(0, 2, 1000), (0, 1, 10)], [4, 4])
    assert moves(run) == []


def test_its_own_devices_count_as_free_for_a_job_that_moves_nearer():
    # j4 has one device of m0 and one of m1 from 100 s on; the other device of m0 comes free at 300 s.
    run = play(Moves(1e6), [(0, 1, 100), (0, 1, 300), (0, 1, 100), (0, 1, 5000), (0, 2, 1000)], [2, 2])
    assert places(run, "j4") == ["m0:1", "m1:1"]
    assert moves(run) == [(300.0, "j4", ["m0:2"])]
    assert run.records["end_s"][4] == 1140.0


@pytest.mark.parametrize(
    ("drained", "moved"),
    [(0, []), (3, [(200.1, "j4", ["m0:4", "m1:4"])]), (None, [(200.1, "j4", ["m0:4", "m1:4"])])],
)
def test_its_devices_on_a_drained_machine_do_not_count(drained, moved):
    # j4 runs on m0 and m3 from 40.3 s on. m1, beside m0, comes free at 200.1 s.
    rows = [(0, 4, 40), (0.1, 4, 200), (0.2, 4, 1e6), (0.3, 4, 40), (1, 8, 2e5)]
    events = [] if drained is None else [(150.0, drained, "drain"), (3e5, drained, "undrain")]
    run = play(Moves(1e6), rows, [[4, 4], [4, 4]], faults=faults(events))
    assert places(run, "j4") == ["m0:4", "m3:4"]
    assert moves(run) == moved


def test_of_several_spread_jobs_each_that_finds_a_place_moves():
    # Two gangs are spread over m0 and m1, from 100 s and from 200 s; m2 has room for both from 300 s on.
    singles = [(0, 1, 100), (0, 1, 200), (0, 1, 5000)] * 2
    run = play(Moves(1e6), [*singles, (0, 4, 300), (0, 2, 1000), (0, 2, 1000)], [3, 3, 4])
    assert places(run, "j7") == places(run, "j8") == ["m0:1", "m1:1"]
    # the first of them leaves a device of each machine, so that the second fits m0 with its own
    assert sorted((at, *where) for at, _, where in moves(run)) == [(300.0, "m0:2"), (300.0, "m2:2")]
    assert run.records["end_s"][7:].tolist() == [1140.0, 1240.0]


# Defragmentation


@dataclass(frozen=True)
class Tidy(Policy):
    """Jobs wait for one machine; others step aside if the wait is worth `times` of what that costs them."""

    times: float = 1.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), defragment=Defragment(self.times))

    @staticmethod
    def allowed_tier(job: Any, now: float, params: Any) -> int:
        return job.nearest_tier

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1


def fragmented(ends_s: float, arrives_s: float = 1000.0) -> list:
    """Half of each of two machines of four is taken: of m0 until `ends_s`, of m1 for long; j3 asks for three."""
    return [(0, 2, ends_s), (0, 2, 5), (1, 2, 9000), (arrives_s, 3, 100)]


@pytest.mark.parametrize(
    ("wait_s", "times", "steps_aside"),
    [(40.0, 1.0, True), (39.0, 1.0, False), (80.0, 2.0, True), (79.0, 2.0, False), (500.0, 1.0, True)],
)
def test_a_job_steps_aside_where_the_wait_of_another_is_worth_it(wait_s, times, steps_aside):
    run = play(Tidy(times), fragmented(1000.0 + wait_s), [4, 4])
    assert moves(run) == ([(1000.0, "j0", ["m1:2"])] if steps_aside else [])
    assert run.records["first_start_s"][3] == (1000.0 if steps_aside else 1000.0 + wait_s)


def test_who_steps_aside_restores_and_goes_on():
    run = play(Tidy(), fragmented(5000.0), [4, 4])
    assert places(run, "j3") == ["m0:3"]
    assert run.records["end_s"].tolist() == [5040.0, 5.0, 9001.0, 1100.0]
    assert run.accounts["lost_gpu_s"].tolist() == [80.0, 0.0, 0.0, 0.0]
    assert run.records["waited_s"].tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("arrives_s", "start_s"), [(299.0, 5000.0), (300.0, 300.0)])
def test_no_job_steps_aside_within_five_minutes_of_its_start(arrives_s, start_s):
    run = play(Tidy(), fragmented(5000.0, arrives_s), [4, 4])
    assert run.records["first_start_s"][3] == start_s


def test_two_that_step_aside_must_be_worth_two_restarts():
    # m0 has one device free, m1 and m2 two and one: j4 asks for a whole machine of four.
    rows = [(0, 1, 2000), (0, 2, 2000), (0, 1, 5), (1, 2, 9000), (1, 2, 5), (2, 3, 9000), (1000, 4, 100)]
    run = play(Tidy(), rows, [4, 4, 4])
    assert sorted(job for _, job, _ in moves(run)) == ["j0", "j1"]
    assert run.records["first_start_s"][6] == 1000.0
    late = [(at, gpus, 1079.0 if seconds == 2000 else seconds) for at, gpus, seconds in rows]
    assert moves(play(Tidy(), late, [4, 4, 4])) == []


def test_where_no_other_place_is_free_no_job_moves():
    rows = [(0, 3, 2000), (0, 3, 3000), (1000, 2, 100)]
    run = play(Tidy(), rows, [4, 4])
    assert moves(run) == []
    assert run.records["first_start_s"][2] == 2000.0


LONG = 9000  # seconds: longer than anything that is waited for


@pytest.mark.parametrize(
    ("inside", "asked", "aside"),
    [
        # m0 has two devices free of eight, and four are asked for: the smallest that holds two moves.
        ((1, 2, 3), 4, ["j1"]),
        ((3, 1, 2), 4, ["j2"]),
        # Three are free, and six are asked for: no job holds three, so the largest moves, then the smallest.
        ((1, 2, 2), 6, ["j0", "j1"]),
    ],
)
def test_the_smallest_job_that_suffices_steps_aside_else_the_largest(inside, asked, aside):
    # j3 fills five devices of m1, of nine; it would have to leave it for m0, where it does not fit.
    rows = [*((0, gpus, LONG) for gpus in inside), (0, 5, LONG), (1000, asked, 100)]
    run = play(Tidy(), rows, [8, 8 if asked == 4 else 9])
    assert places(run, "j4") == [f"m0:{asked}"]
    assert run.records["first_start_s"][4] == 1000.0
    sizes = {f"j{at}": gpus for at, gpus in enumerate(inside)}
    assert sorted(moves(run)) == [(1000.0, job, [f"m1:{sizes[job]}"]) for job in aside]


@pytest.mark.parametrize(("asked", "start_s"), [(19, 1000.0), (20, 9000.0)])
def test_up_to_sixteen_jobs_step_aside_for_one(asked, start_s):
    # 17 single devices of m0, of 20, are taken, and half of m1, of 36.
    rows = [*[(0, 1, LONG)] * 17, (0, 18, LONG), (1000, asked, 100)]
    run = play(Tidy(), rows, [20, 36])
    assert run.records["first_start_s"][18] == start_s
    assert len(moves(run)) == (16 if asked == 19 else 0)
    # each restores for 40 s, for which it holds its device longer
    assert sorted(set(run.records["end_s"][:17].tolist())) == ([9000.0, 9040.0] if asked == 19 else [9000.0])


def test_the_machine_with_most_free_devices_is_cleared_first():
    # From 5 s on m0 has two free of four, m1 three, m2 two.
    rows = [(0, 2, LONG), (0, 2, 5), (0, 1, LONG), (0, 3, 5), (0, 2, LONG), (1000, 4, 100)]
    run = play(Tidy(), rows, [4, 4, 4])
    assert places(run, "j5") == ["m1:4"]
    assert [(at, job) for at, job, _ in moves(run)] == [(1000.0, "j2")]


@pytest.mark.parametrize(("others", "start_s"), [(5, 1000.0), (6, 9000.0)])
def test_six_machines_are_tried_for_a_job(others, start_s):
    # Each of the others has three free devices of eight, and a job that fits nowhere else; m0 has two and single ones.
    rows = [*[(0, 1, LONG)] * 6, *[(0, 5, LONG)] * others, (1000, 4, 100)]
    run = play(Tidy(), rows, [8] * (others + 1))
    assert run.records["first_start_s"][-1] == start_s
    assert len(moves(run)) == (2 if start_s == 1000.0 else 0)


@dataclass(frozen=True)
class TidyFarther(Tidy):
    """Jobs that step aside may be spread."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), defragment=Defragment(self.times, farther=True))


@pytest.mark.parametrize("policy", [Tidy(), TidyFarther()], ids=["as near", "farther"])
def test_a_job_steps_aside_to_farther_places_only_if_that_is_allowed(policy):
    # Two devices of m0 are free, of four, and one of m1 and of m2 each.
    rows = [(0, 2, LONG), (0, 3, LONG), (0, 3, LONG), (1000, 3, 100)]
    run = play(policy, rows, [4, 4, 4])
    farther = isinstance(policy, TidyFarther)
    assert moves(run) == ([(1000.0, "j0", ["m1:1", "m2:1"])] if farther else [])
    assert run.records["first_start_s"][3] == (1000.0 if farther else 9000.0)
    assert run.records["end_s"][0] == (9040.0 if farther else 9000.0)


@pytest.mark.parametrize(
    ("first", "third", "aside"), [(0, 0, ["j0"]), (1, 0, ["j2"]), (1, 1, []), (-1, 1, ["j0"])]
)
def test_no_job_steps_aside_for_one_of_lower_priority(first, third, aside):
    priorities = (first, 0, third, 0)
    rows = [
        (*row, None, None, priority) for row, priority in zip(fragmented(5000.0), priorities, strict=True)
    ]
    run = play(Tidy(), rows, [4, 4])
    assert [job for _, job, _ in moves(run)] == aside
    assert run.records["first_start_s"][3] == (1000.0 if aside else 5000.0)


@dataclass(frozen=True)
class TidyForTens(Tidy):
    """Only a job of ten seconds is worth that others move."""

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1 if job.work_s == 10.0 else 0


@pytest.mark.parametrize(("others", "start_s"), [(7, 1000.0), (8, 9400.0)])
def test_eight_blocked_jobs_are_considered_in_one_pass(others, start_s):
    """Half of each machine is taken. Jobs of 13, 14 and so on are blocked ahead of one of 24, for which others move.

    Behind eight of them it waits for all: until 9,000 s, and then for four times 100 s on two machines.
    """
    blocked = [(1000, 13 + number, 100) for number in range(others)]
    run = play(TidyForTens(), [(0, 12, LONG), (0, 12, 5), (1, 12, LONG), *blocked, (1000, 24, 10)], [24, 24])
    assert run.records["first_start_s"][-1] == start_s
    assert len(moves(run)) == (1 if start_s == 1000.0 else 0)


@dataclass(frozen=True)
class TidyAndRelaxed(Tidy):
    """Jobs wait for one machine; others step aside for them."""

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), defragment=Defragment(self.times), relax_locality=True)

    @staticmethod
    def spread(job: Any, tier: int, wait: float, now: float, params: Any) -> int:
        return 1 if tier == job.nearest_tier else 0


def test_a_job_for_which_others_move_leaves_what_is_reserved_for_another_of_its_priority():
    """From 5 s on m0 has three free devices of six, m1 and m2 two of four. j5 needs all of m0, from 2,000 s on.

    At 400 s j6, of the same priority, needs four: j0 moves from m1 to m2. j7, of lower priority, needs three beyond
    2,000 s: not those of m0 but, when j6 has ended, those of m1.
    """
    rows = [
        (0, 2, LONG),
        (0, 2, 5),
        (0, 2, LONG),
        (0, 2, 5),
        (0, 3, 2000),
        (6, 6, 100),
        (400, 4, 100),
        (400, 3, 5000),
    ]
    priorities = (0, 0, 0, 0, 0, 1, 1, 0)
    ranked = [(*row, None, None, priority) for row, priority in zip(rows, priorities, strict=True)]
    run = play(TidyAndRelaxed(), ranked, [6, 4, 4])
    assert moves(run) == [(400.0, "j0", ["m2:2"])]
    assert run.records["first_start_s"][5:].tolist() == [2000.0, 400.0, 500.0]


# Reservations for jobs that wait long


@dataclass(frozen=True)
class Reserves(Policy):
    """Small jobs overtake; a job that has waited `after_s` has a place reserved."""

    after_s: float = 100.0
    share: float = 1e9

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), reserve=Reserve(self.after_s, self.share))


def stream(until_s: int) -> list:
    """A machine of two that single devices keep half busy each, one every 50 s; the pair j1 comes at 1 s."""
    return [(0, 1, 60), (1, 2, 10), *((at, 1, 100) for at in range(10, until_s, 50))]


@pytest.mark.parametrize(
    ("after_s", "start_s"),
    [
        # Singles run from 10 s to 110 s, from 60 s to 160 s, and so on. From the first event after `after_s` of
        # waiting, at 110 s, none may start that ends after the one that runs: that ends at 160 s.
        (100.0, 160.0),
        (200.0, 260.0),
        (400.0, 460.0),
        (1e9, 1060.0),  # never: until the stream ends
    ],
)
def test_a_job_that_small_ones_overtake_starts_once_a_place_is_reserved(after_s, start_s):
    run = play(Reserves(after_s), stream(1000), [2])
    assert run.records["first_start_s"][1] == start_s


@pytest.mark.parametrize(("share", "start_s"), [(0.24, 260.0), (0.23, 310.0), (0.01, 1060.0)])
def test_a_place_is_reserved_only_if_it_comes_free_within_a_share_of_the_wait(share, start_s):
    # At 210 s it has waited 209 s, and the place comes free in 50 s; at 260 s it has waited 259 s.
    run = play(Reserves(200.0, share), stream(1000), [2])
    assert run.records["first_start_s"][1] == start_s
