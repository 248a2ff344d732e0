"""Where the parts of a job lie, when they start, and what they displace: places, seconds and reasons by hand.

A part tied to a tier lies within one group of it; the others share what is left, as compactly as a gang.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from berth.schedule import Policy, PreemptByGain, Rules, StaticOrder
from berth.schedule.policies.registry import load_policy
from berth.schedule.reasons import CODES, explained_record
from berth.schedule.records import JobStatus
from berth.simulate.events import event_frame
from berth.simulate.run import Run, Setting, simulate
from berth.testing import cluster
from berth.testing.policies import EXERCISES
from berth.workload.shapes import EVERY, Offer, Part, Shape, Work, canonical
from berth.workload.trace import Trace

SETTING = Setting(network="off", log=True, eviction_s=40.0, eviction_large_s=60.0)


def shape(*parts: dict[str, int] | tuple[dict[str, int], str], step_s: float = 1.0) -> Shape:
    """A shape of parts: the devices of each, and the tier to which it is tied."""
    tied = [part if isinstance(part, tuple) else (part, None) for part in parts]
    made = tuple(Part(f"p{row}", tuple(need.items()), tier) for row, (need, tier) in enumerate(tied))
    return Shape(f"{sum(part.size for part in made)}", made, ((EVERY, step_s),), 1.0)


def offer(seconds: float, *shapes: Shape) -> Offer:
    """An offer of this many seconds of work, at a step of one second."""
    return canonical(Offer(Work(seconds), shapes))


def gpus(count: int, tier: str | None = None) -> Any:
    return ({"GPU": count}, tier)


def play(rows: list[tuple[float, Offer]], machines: Any, policy: Any = "fit-first", **more: Any) -> Run:
    watch, setting = more.pop("watch", None), replace(SETTING, quotas=more.pop("quotas", {}))
    trace = Trace.from_columns(
        {
            "job_id": [f"j{row}" for row in range(len(rows))],
            "submit_s": [at for at, _ in rows],
            "num_gpu": [one.alternatives[0].parts[0].size for _, one in rows],
            "duration_s": [1.0] * len(rows),
            **more,
        },
        source="test",
        offers={f"j{row}": one for row, (_, one) in enumerate(rows)},
    )
    chosen = EXERCISES.get(policy) or load_policy(policy) if isinstance(policy, str) else policy
    return simulate(trace, cluster(machines), chosen, setting, watch=watch)


def places(run: Run, job: str) -> list[str]:
    log = event_frame(run)
    return sorted(log.filter((log["event"] == "started") & (log["job"] == job))["places"][0])


@pytest.mark.parametrize(
    ("machines", "parts", "expected"),
    [
        ([4, 3, 2], [gpus(2, "machine")], ["m2:2"]),
        ([4, 3, 2], [gpus(3, "machine"), gpus(2, "machine")], ["m1:3", "m2:2"]),
        ([4, 4, 2], [gpus(3, "machine")], ["m0:3"]),
        # three on m0 first, and then there is no place for the last two
        ([4, 5], [gpus(count, "machine") for count in (3, 2, 2, 2)], ["m0:2", "m0:2", "m1:2", "m1:3"]),
        ([3, 3, 3], [gpus(2, "machine"), gpus(2, "machine"), gpus(3)], ["m0:2", "m1:2", "m2:3"]),
        ([4, 4], [gpus(2, "machine"), gpus(3)], ["m0:2", "m1:3"]),
        ([4, 4], [gpus(3, "machine"), gpus(1, "machine"), gpus(2)], ["m0:1", "m0:3", "m1:2"]),
        ([[2, 2], [3, 3]], [gpus(4, "rack")], ["m0:2", "m1:2"]),
        ([[2, 2], [3, 3]], [gpus(5, "rack")], ["m2:3", "m3:2"]),
        ([[3, 3], [2, 2]], [gpus(4, "rack"), gpus(4, "rack")], ["m0:3", "m1:1", "m2:2", "m3:2"]),
        ([[4, 4], [8]], [gpus(3, "machine"), gpus(5)], ["m2:8"]),
    ],
    ids=[
        "the tightest machine",
        "each part in the tightest machine left",
        "of equal machines the first",
        "a part gives up the tightest machine where a later one would find none",
        "a part that is not tied takes one machine if one holds it",
        "of those that hold it the tightest",
        "beside parts of other sizes",
        "the tightest rack",
        "the only rack that holds it",
        "a rack for each",
        "one machine before one rack",
    ],
)
def test_parts_lie_where_they_break_up_least(machines, parts, expected):
    run = play([(0, offer(10, shape(*parts)))], machines)
    assert places(run, "j0") == expected
    assert run.records["end_s"].tolist() == [10.0]


@pytest.mark.parametrize(
    ("machines", "parts"),
    [
        ([3, 3], [gpus(2, "machine")] * 3),
        ([[2, 2], [2]], [gpus(5, "rack")]),
        ([4, 4], [gpus(9)]),
        ([{"T4": 4}, {"V100-16": 4}], [({"T4": 1, "V100-16": 1}, "machine")]),
    ],
    ids=["three parts on two machines", "larger than a rack", "larger than all", "types of two machines"],
)
def test_a_shape_that_no_place_ever_holds_is_refused(machines, parts):
    fits = {"T4": 1} if isinstance(machines[0], dict) else {"GPU": 1}
    run = play([(0, offer(10, shape(*parts))), (0, offer(10, shape(fits)))], machines)
    assert run.records["state"].tolist() == [JobStatus.REFUSED, JobStatus.DONE]


# Machines of two types: eight T4 and two V100, four T4 and four V100.
MIXED = [{"T4": 8, "V100-16": 2}, {"T4": 4, "V100-16": 4}]


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        ({"T4": 4, "V100-16": 2}, ["m1:2", "m1:4"]),  # two to spare on m1, four on m0
        ({"T4": 5, "V100-16": 2}, ["m0:2", "m0:5"]),
        ({"T4": 1, "V100-16": 3}, ["m1:1", "m1:3"]),
        ({"T4": 9, "V100-16": 3}, ["m0:8", "m1:1", "m1:3"]),  # each type by itself
    ],
)
def test_a_part_of_two_types_lies_where_fewest_devices_of_these_are_to_spare(need, expected):
    assert places(play([(0, offer(10, shape(need)))], MIXED), "j0") == expected


@pytest.mark.parametrize(
    ("parts", "start_s", "code"),
    [
        ([gpus(1, "machine"), gpus(1)], 5.0, None),
        ([gpus(2, "machine")], 100.0, "too-spread"),
        ([gpus(1, "machine"), gpus(2)], 100.0, "no-room"),
    ],
    ids=["there is a place", "no machine has two", "there are too few"],
)
def test_a_wait_for_devices_too_far_apart_has_another_reason_than_one_for_too_few(parts, start_s, code):
    """One device is free on each of two machines, until j0 ends at 100 s."""
    seen = [None]

    def look(world: Any, clock: Any) -> int:
        if world.jobs["state"][2] == JobStatus.WAITING:
            seen.append(CODES[explained_record(world, 2)["reason"]])
        return 1

    half = shape(gpus(3, "machine"))
    rows = [(0, offer(100, half)), (0, offer(900, half)), (5, offer(10, shape(*parts)))]
    run = play(rows, [4, 4], watch=look)
    assert run.records["first_start_s"].tolist() == [0.0, 0.0, start_s]
    assert seen[-1] == code


# j0 holds the V100s of m0 until 200 s, j1 its T4s until 100 s, j2 those of m1 until 900 s; m1 has no V100.
TYPES = [{"V100-16": 4, "T4": 4}, {"T4": 4}]
BOTH = shape({"T4": 2, "V100-16": 2})


def held(v100_s: float = 200.0, t4_s: float = 100.0) -> list[tuple[float, Offer]]:
    return [
        (0, offer(v100_s, shape({"V100-16": 4}))),
        (0, offer(t4_s, shape(({"T4": 4}, "machine")))),
        (0, offer(900, shape(({"T4": 4}, "machine")))),
    ]


@pytest.mark.parametrize(
    ("v100_s", "t4_s", "start_s"), [(200.0, 100.0, 200.0), (100.0, 200.0, 200.0), (50.0, 50.0, 50.0)]
)
@pytest.mark.parametrize("policy", ["fit-first", "backfill", "near-backfill"])
def test_all_types_of_a_part_must_have_come_free_together(policy, v100_s, t4_s, start_s):
    rows = [*held(v100_s, t4_s), (5, offer(1000, BOTH))]
    assert play(rows, TYPES, policy, preemptible=[0] * 4).records["first_start_s"][3] == start_s


@pytest.mark.parametrize(
    ("need", "seconds", "start_s"),
    [
        ({"T4": 4}, 100.0, 100.0),  # ends when the V100s come free
        ({"T4": 4}, 101.0, 210.0),  # a second later: after the other
        ({"T4": 2}, 101.0, 200.0),  # with the other, which leaves two T4s over
    ],
)
def test_while_one_type_of_a_reserved_place_is_free_others_use_it_until_the_rest_comes_free(
    need, seconds, start_s
):
    """j3 needs both types of m0, for 10 s, from 200 s on."""
    rows = [*held(), (5, offer(10, BOTH)), (6, offer(seconds, shape(need)))]
    run = play(rows, TYPES, "backfill")
    assert run.records["first_start_s"][3:].tolist() == [200.0, start_s]
    assert places(run, "j3") == ["m0:2", "m0:2"]


@dataclass(frozen=True)
class Gains(Policy):
    """Jobs of ten seconds gain `gain_s` by a start; their victims lose a restart."""

    gain_s: float = 0.0

    def rules(self) -> Rules:
        return Rules(order=StaticOrder(), preempt=PreemptByGain(margin=1.0))

    @staticmethod
    def gain(job: Any, here: float, there: float, now: float, params: Any) -> float:
        return params.gain_s if job.work_s == 10.0 else 0.0

    @staticmethod
    def cost(victim: Any, job: Any, now: float, params: Any) -> float:
        return victim.work_s if victim.work_s > 500.0 else 0.0


@pytest.mark.parametrize(
    ("need", "gain_s", "evictions", "start_s"),
    [
        (BOTH, 81.0, [1, 1, 0], 5.0),  # two restarts of 40 s
        (BOTH, 80.0, [1, 0, 0], 100.0),  # one, when j1 has ended
        (BOTH, 40.0, [0, 0, 0], 200.0),
        (shape({"V100-16": 2}), 41.0, [1, 0, 0], 5.0),
        (shape({"V100-16": 2}), 40.0, [0, 0, 0], 200.0),
        (shape({"T4": 6, "V100-16": 2}), 1021.0, [1, 1, 1], 5.0),  # three, and the 900 s of j2
        (shape({"T4": 6, "V100-16": 2}), 1020.0, [1, 0, 1], 100.0),
        (shape({"T4": 6, "V100-16": 2}), 980.0, [0, 0, 1], 200.0),
        (shape({"T4": 6, "V100-16": 2}), 940.0, [0, 0, 0], 900.0),
    ],
)
def test_what_holds_each_type_is_evicted_where_all_of_it_costs_less_than_the_gain(
    need, gain_s, evictions, start_s
):
    run = play([*held(), (5, offer(10, need))], TYPES, Gains(gain_s))
    assert run.records["evictions"][:3].tolist() == evictions
    assert run.records["first_start_s"][3] == start_s


def test_a_user_holds_what_the_parts_of_its_jobs_hold_of_each_type():
    """At 5 s j3 waits; at 200 s it starts, beside the T4s that j2 holds."""
    seen = {}

    def look(world: Any, clock: Any) -> int:
        seen[float(clock["now"][0])] = world.users["devices"][:, :2].tolist()
        return 1

    rows = [*held(), (5, offer(10, shape({"T4": 2, "V100-16": 3})))]
    play(rows, TYPES, user=["a", "b", "a", "b"], watch=look)
    assert seen[5.0] == [[4, 4], [0, 4]]  # V100s and T4s
    assert seen[200.0] == [[0, 4], [3, 2]]
    assert seen[210.0] == [[0, 4], [0, 0]]


@pytest.mark.parametrize(
    ("quota", "first", "second_s"), [(8, "8", 100.0), (7, "2", 0.0), (4, "2", 0.0), (3, "2", 500.0)]
)
def test_a_job_takes_the_best_of_the_shapes_that_its_quota_allows(quota, first, second_s):
    """100 s on eight devices or 500 s on two; both jobs are of the same virtual cluster."""
    either = offer(100, shape(gpus(2), step_s=5.0), shape(gpus(8)))
    run = play([(0, either), (0, either)], [16], "berth", quotas={"x": quota}, vc=["x", "x"])
    log = event_frame(run)
    assert log.filter(log["event"] == "started")["shape"][0] == first
    assert run.records["first_start_s"].tolist() == [0.0, second_s]
