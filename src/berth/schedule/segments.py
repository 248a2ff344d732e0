"""The queue in segments: consecutive jobs that a pass can rule out together.

`World.waiting` is one sorted array. A segment covers some dozens of its entries and knows their number, the smallest
demand among them by the tier that they accept, and until when that holds. A walk through a long queue takes a
step per segment where no group has as many free devices as the smallest demand needs (asking.py): the jobs in it
would all have been tried, and none would have started.

Segments are linked in the order of the queue. A job that joins or leaves changes the one it belongs to, and no other,
as they know how many jobs they cover and not where. One that has grown too large is cut in two.
"""

from __future__ import annotations

import math
from typing import Any

from berth.native.kernels import inlined, kernel
from berth.schedule.records import MAX_TIERS, World

_NONE = 2**31 - 1  # no job has such a demand or priority
_MOST = 128  # jobs of a segment


@kernel
def begin_walk(world: World) -> None:
    """Puts the cursor in front of the queue."""
    state, walk = world.state[0], world.walk[0]
    walk.next_segment, walk.segment_stop = walk.first_segment, state.queue_start
    walk.segment = -1


@inlined
def enter_segment(world: World, at: int) -> None:
    """Moves the cursor into the segment before which it is, at an index of the queue."""
    walk = world.walk[0]
    segment = world.segments[walk.next_segment]
    walk.segment, walk.segment_stop, walk.next_segment = (
        walk.next_segment,
        at + segment.count,
        segment.next,
    )


@kernel
def find_segment(world: World, at: int) -> None:
    """Moves the cursor into the segment of an index of the queue, or in front of it if that is its first."""
    state, walk = world.state[0], world.walk[0]
    number, stop = walk.first_segment, state.queue_start + world.segments[walk.first_segment].count
    while stop <= at:
        number = world.segments[number].next
        stop += world.segments[number].count
    inside = at > stop - world.segments[number].count
    walk.segment = number if inside else -1
    walk.next_segment = world.segments[number].next if inside else number
    walk.segment_stop = stop if inside else at


@kernel
def join_segment(world: World, at: int, row: int, number: int, start: int) -> tuple[int, int]:
    """Counts a job that was inserted at an index of the queue; what its segment knew is asked again.

    Looks for the segment from one on that begins at the index `start`. Returns the segment and where it begins.
    """
    walk = world.walk[0]
    walk.segment = -1
    if walk.first_segment < 0:
        walk.first_segment = number = new_segment(world)
    while at - start > world.segments[number].count:
        start += world.segments[number].count
        number = world.segments[number].next
    segment = world.segments[number]
    segment.count += 1
    segment.answers = -1
    segment.priority = min(segment.priority, world.jobs[row].priority)
    if segment.count > _MOST:
        cut(world, segment)
    return number, start


@kernel
def cut(world: World, segment: Any) -> None:
    """Moves the later half of a segment to a new one, if there is an unused one."""
    number = new_segment(world)
    if number >= 0:
        later = world.segments[number]
        later.count, later.next, later.priority = segment.count // 2, segment.next, segment.priority
        segment.count, segment.next = segment.count - later.count, number


@kernel
def new_segment(world: World) -> int:
    """An unused segment; -1: there is none."""
    walk = world.walk[0]
    number = walk.unused_segment
    if number >= 0:
        segment = world.segments[number]
        walk.unused_segment = segment.next
        segment.next, segment.count, segment.answers, segment.priority = -1, 0, -1, _NONE
    return number


@kernel
def leave_segment(world: World, at: int, row: int) -> None:
    """Counts a job out that is about to be removed at an index of the queue."""
    walk, job = world.walk[0], world.jobs[row]
    number = segment_of(world, at)
    segment = world.segments[number]
    segment.count -= 1
    if segment.count == 0:
        drop_segment(world, number)
    elif segment.answers == walk.answers:
        first = job.asked_until_s < math.inf and job.asked_until_s <= segment.until_s
        small = job.gpus <= max(segment.need[job.asked_tier], segment.need_spread[job.widest_tier])
        if first or small:
            segment.answers = -1


@kernel
def segment_of(world: World, at: int) -> int:
    """The segment of an index of the queue: most jobs leave the one in which the cursor is."""
    state, walk = world.state[0], world.walk[0]
    number, stop = walk.segment, walk.segment_stop
    if number < 0 or not stop - world.segments[number].count <= at < stop:
        walk.segment = -1
        number, stop = walk.first_segment, state.queue_start + world.segments[walk.first_segment].count
        while stop <= at:
            number = world.segments[number].next
            stop += world.segments[number].count
    return int(number)


@kernel
def drop_segment(world: World, number: int) -> None:
    """Takes an empty segment out of the list."""
    walk, before = world.walk[0], world.walk[0].first_segment
    following = world.segments[number].next
    if before == number:
        walk.first_segment = following
    else:
        while world.segments[before].next != number:
            before = world.segments[before].next
        world.segments[before].next = following
    world.segments[number].next, walk.unused_segment, walk.segment = walk.unused_segment, number, -1


@kernel
def forget_demand(world: World, demand: int) -> None:
    """Makes a pass ask again about the jobs of one size, whose timers have changed."""
    world.demands[demand].answers += 1
    number = world.walk[0].first_segment
    while number >= 0:
        segment = world.segments[number]
        if segment.demands >> (demand & 63) & 1:
            segment.answers = -1
        number = segment.next


@kernel
def clear_needs(segment: Any) -> None:
    """Forgets what a segment knew of its jobs."""
    segment.until_s, segment.shortest_s, segment.priority, segment.gains = math.inf, -1.0, _NONE, 0
    segment.demands = segment.fixed = 0
    for tier in range(MAX_TIERS):
        segment.need[tier] = segment.need_spread[tier] = _NONE


@kernel
def add_needs(segment: Any, job: Any) -> None:
    """Adds what a segment must know of one of its jobs."""
    segment.until_s = min(segment.until_s, job.asked_until_s)
    segment.demands |= 1 << (job.demand & 63)
    segment.priority = min(segment.priority, job.priority)
    segment.fixed |= not job.preemptible
    segment.need[job.asked_tier] = min(segment.need[job.asked_tier], job.gpus)
    segment.need_spread[job.widest_tier] = min(segment.need_spread[job.widest_tier], job.gpus)


@inlined
def runs_s(job: Any) -> float:
    """Seconds that a waiting job would run at the tier that it accepts, without restoring."""
    return job.estimated_remaining_s * job.slowdown[job.asked_tier]
