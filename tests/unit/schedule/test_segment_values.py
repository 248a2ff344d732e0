"""What a segment of the queue knows of its jobs, and how segments are cut, emptied and used again."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from berth.schedule import segments
from berth.schedule.records import MAX_TIERS

NONE = 2**31 - 1


@pytest.fixture(autouse=True)
def in_python(monkeypatch):
    """The kernels of the module call each other as plain functions."""
    for name, kernel in vars(segments).items():
        if hasattr(kernel, "py_func"):
            monkeypatch.setattr(segments, name, kernel.py_func)


def segment(count: int, after: int = -1, **known: Any) -> SimpleNamespace:
    """A segment that knows nothing of its jobs but what is given."""
    made = SimpleNamespace(
        count=count, next=after, answers=7, need=[0] * MAX_TIERS, need_spread=[0] * MAX_TIERS
    )
    segments.clear_needs(made)
    vars(made).update(known)
    return made


def job(gpus: int = 4, **more: Any) -> SimpleNamespace:
    known = {
        "demand": 0,
        "priority": 0,
        "preemptible": 1,
        "asked_tier": 0,
        "widest_tier": 2,
        "asked_until_s": math.inf,
        "estimated_remaining_s": 100.0,
        "slowdown": [1.0, 1.5, 2.0],
    }
    return SimpleNamespace(gpus=gpus, **{**known, **more})


def world_of(counts: list[int], unused: int = 1, **more: Any) -> SimpleNamespace:
    """A queue of segments with these counts of jobs, from index 10 on, and some unused segments behind them."""
    total = len(counts) + unused
    made = [segment(count, row + 1, priority=0) for row, count in enumerate(counts)]
    made += [segment(0, row + 1) for row in range(len(counts), total)]
    for last in (len(counts) - 1, total - 1):
        made[last].next = -1
    walk = SimpleNamespace(
        first_segment=0 if counts else -1,
        unused_segment=len(counts) if unused else -1,
        answers=7,
        segment=-1,
        segment_stop=10,
    )
    return SimpleNamespace(
        segments=made,
        state=[SimpleNamespace(queue_start=10)],
        walk=[walk],
        jobs=[job()],
        demands=[SimpleNamespace(answers=0) for _ in range(70)],
        **more,
    )


def counts_of(world: Any) -> list[int]:
    """Jobs of each segment, in the order of the queue."""
    found, number = [], world.walk[0].first_segment
    while number >= 0:
        found.append(world.segments[number].count)
        number = world.segments[number].next
    return found


def unused(world: Any) -> int:
    """How many segments are unused."""
    count, number = 0, world.walk[0].unused_segment
    while number >= 0:
        count, number = count + 1, world.segments[number].next
    return count


@pytest.mark.parametrize(
    ("counts", "at", "after", "found"),
    [
        ([], 10, [1], (0, 10)),
        ([3, 2], 10, [4, 2], (0, 10)),
        ([3, 2], 13, [4, 2], (0, 10)),  # between two it joins the first
        ([3, 2], 14, [3, 3], (1, 13)),
        ([3, 2], 15, [3, 3], (1, 13)),
        ([3, 2, 1], 16, [3, 2, 2], (2, 15)),
        ([127, 2], 20, [128, 2], (0, 10)),
        ([128, 2], 20, [65, 64, 2], (0, 10)),  # cut in two
    ],
)
def test_a_job_joins_the_segment_around_its_place(counts, at, after, found):
    world = world_of(counts)
    assert segments.join_segment(world, at, 0, world.walk[0].first_segment, 10) == found
    assert counts_of(world) == after
    assert unused(world) == len(counts) + 1 - len(after)


def test_a_segment_grows_longer_where_none_is_unused():
    world = world_of([128, 2], unused=0)
    segments.join_segment(world, 20, 0, 0, 10)
    assert counts_of(world) == [129, 2]


@pytest.mark.parametrize(("priority", "lowest"), [(-5, -5), (0, 0), (9, 0)])
def test_what_a_segment_knew_is_asked_again_when_a_job_joins_it(priority, lowest):
    world = world_of([3, 2])
    world.jobs[0].priority = priority
    segments.join_segment(world, 12, 0, 0, 10)
    assert [one.answers for one in world.segments[:2]] == [-1, 7]
    assert [one.priority for one in world.segments[:2]] == [lowest, 0]


@pytest.mark.parametrize(
    ("counts", "at", "after"),
    [
        ([3, 2], 10, [2, 2]),
        ([3, 2], 12, [2, 2]),
        ([3, 2], 13, [3, 1]),
        ([1, 2, 3], 10, [2, 3]),
        ([2, 1, 3], 12, [2, 3]),
        ([2, 1], 12, [2]),
        ([1], 10, []),
    ],
)
def test_a_segment_that_is_empty_leaves_the_queue_and_is_used_again(counts, at, after):
    world = world_of(counts)
    segments.leave_segment(world, at, 0)
    assert counts_of(world) == after
    assert unused(world) == 1 + len(counts) - len(after)


@pytest.mark.parametrize(
    ("cursor", "stop", "at", "after"),
    [
        (1, 15, 13, [3, 1, 4]),
        (1, 15, 14, [3, 1, 4]),
        (1, 15, 12, [2, 2, 4]),  # not in the cursor's segment
        (1, 15, 15, [3, 2, 3]),
        (-1, 13, 12, [2, 2, 4]),
    ],
)
def test_a_job_leaves_its_segment_wherever_the_cursor_is(cursor, stop, at, after):
    world = world_of([3, 2, 4])
    world.walk[0].segment, world.walk[0].segment_stop = cursor, stop
    segments.leave_segment(world, at, 0)
    assert counts_of(world) == after


@pytest.mark.parametrize(
    ("leaves", "answers"),
    [
        (job(9), 7),
        (job(5), 7),  # larger than the smallest that accept its tier, and than those of its widest tier
        (job(4), -1),  # the smallest that accepts tier 0
        (job(5, widest_tier=1), -1),  # the smallest that may be at tier 1
        (job(9, asked_until_s=60.0), 7),
        (job(9, asked_until_s=50.0), -1),  # the first whose answer may change
    ],
)
def test_a_segment_is_asked_again_when_a_job_leaves_that_decided_what_it_knew(leaves, answers):
    world = world_of([3])
    world.jobs[0] = leaves
    world.segments[0] = segment(3, need=[4, 0, 0], need_spread=[0, 5, 3], until_s=50.0)
    segments.leave_segment(world, 11, 0)
    assert world.segments[0].answers == answers


def test_jobs_of_one_size_are_asked_again_where_a_segment_may_have_some():
    """Sizes are kept as 64 bits: size 65 shares its bit with size 1."""
    world = world_of([3, 3, 3])
    for one, demands in zip(world.segments, (0b010, 0b101, 0b110), strict=False):
        one.demands = demands
    segments.forget_demand(world, 65)
    assert [one.answers for one in world.segments[:3]] == [-1, 7, -1]
    assert [world.demands[size].answers for size in (1, 64, 65)] == [0, 0, 1]


def test_a_segment_knows_the_least_of_what_its_jobs_need():
    one = segment(3)
    assert (one.demands, one.fixed, one.gains) == (0, 0, 0)
    segments.add_needs(one, job(6, demand=3, asked_until_s=80.0))
    segments.add_needs(one, job(4, demand=66, asked_tier=1, widest_tier=1, priority=-2))  # runs 150 s
    segments.add_needs(one, job(8, demand=5, asked_tier=1, estimated_remaining_s=20.0, preemptible=0))
    assert one.need[:3] == [6, 4, NONE]
    assert one.need_spread[:3] == [NONE, 4, 6]
    assert (one.until_s, one.shortest_s) == (
        80.0,
        -1.0,
    )  # the shortest is looked for when a reservation needs it
    assert (one.demands, one.priority, one.fixed) == (0b101100, -2, 1)


@pytest.mark.parametrize(
    ("at", "next_segment", "stop"),
    [(10, 0, 10), (11, 1, 13), (12, 1, 13), (13, 1, 13), (14, 2, 15), (15, 2, 15), (17, -1, 18)],
)
def test_a_walk_goes_on_inside_a_segment_or_in_front_of_it(at, next_segment, stop):
    world = world_of([3, 2, 3])
    segments.find_segment(world, at)
    assert (world.walk[0].next_segment, world.walk[0].segment_stop) == (next_segment, stop)
