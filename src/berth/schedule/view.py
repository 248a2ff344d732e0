"""The state of the world as compiled code sees it: records of jobs, hosts, groups, and the queues of rows.

A policy reads one `JOB` record at a time, by the names below. The pass walks the arrays. The simulator owns
one such world and lets it live in virtual time; the live controller fills one from its store before each
pass. Everything is in base units: seconds, devices. Records rather than columns: a pass reads many fields of
few jobs, and compiled functions take few arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_TIERS = 8
MAX_KINDS = 8
SMALL_GANG = 8  # up to so many devices stopping and restoring costs `eviction_s`, above it `eviction_large_s`
MAX_CONSTANTS = 24
NOTES = 4  # numbers a policy may keep with each job
TABLE = 512  # entries of a table that a policy reads
WINDOW = 100  # waits remembered per demand and tier

FUTURE, WAITING, RUNNING, DONE, REFUSED = 0, 1, 2, 3, 4

JOB = np.dtype(
    [
        # what every pass reads of a job, close together
        ("priority", "i4"),  # highest first, before any order of the policy's
        ("run_at", "i4"),  # its index among the running
        ("key", "f8"),  # the policy's order among jobs of equal priority, smallest first
        ("then", "f8"),  # among equals
        ("arrival", "f8"),
        ("gpus", "i4"),
        ("demand", "i4"),  # index of its GPU count among all distinct ones
        ("remaining", "f8"),  # seconds of work left at the nearest placement, as far as the scheduler knows
        ("left", "f8"),  # the same, in truth; no policy reads it
        ("attained", "f8"),  # GPU-seconds of all attempts
        ("ran", "f8"),  # seconds of all attempts, this one included
        ("touched", "f8"),  # when these were last brought up to date
        ("stall", "f8"),  # until then the attempt restores its state and makes no progress
        ("speed", "f8"),  # seconds of work per second
        ("next_checkpoint", "f8"),  # of the attempt that runs; inf: none
        ("doubt", "f8"),  # remaining / left: 1 where durations are known
        ("finish", "f8"),
        ("heap_at", "i4"),
        ("head", "i4"),  # first of its places
        ("state", "i4"),
        ("since", "f8"),  # arrival, or the last eviction; a refused offer never resets it
        ("kind", "i4"),  # device type it needs; -1: any of `kinds`
        ("floor", "i4"),  # nearest tier that can ever hold it
        ("widest", "i4"),  # farthest tier its user allows
        ("tier", "i4"),  # where it runs
        # what was asked
        ("kinds", "i4"),  # device types it takes, one bit for each
        ("id", "i8"),
        ("work", "f8"),  # seconds it needs at the nearest placement, alone
        ("user", "i4"),  # a number for each, in the order in which they came
        ("quota", "i4"),  # virtual cluster it is charged to; -1: none
        ("traffic", "i4"),  # row of its model and demand among the traffic records
        # what distance does to it
        ("compute", "f8"),  # share of an iteration at the nearest placement that is computation
        ("skew", "f8"),  # largest tensor / all parameters
        # iteration time at each tier / at the nearest: on as few machines as hold it there, nobody else sending;
        # on more machines, or beside others on its links, a job is slower than this says
        ("slow", "f8", (MAX_TIERS,)),
        ("message", "f8"),  # bytes it sends per iteration, all of it; 0: distance costs nothing
        ("timer", "f8", (MAX_TIERS,)),  # how long to hold out for each tier
        # what an uneven shape over several machines does to it: see shape.py
        ("shape_x", "f8", (3,)),
        ("shape_s", "f8", (3,)),
        ("bent", "f8"),  # slow-down by the shape of the place that is in question
        ("usual", "f8"),  # device-seconds that jobs needed of late; told when `spread` is asked
        # its story so far
        ("queue", "i4"),  # the policy's own, like `notes`
        ("notes", "f8", (NOTES,)),
        ("started", "f8"),  # of the attempt that runs
        ("evicted", "f8"),  # when last; -inf: never
        ("evictions", "i4"),
        ("moves", "i4"),
        ("saved", "f8"),  # `left` at the last checkpoint
        ("checkpoint_s", "f8"),  # seconds of running between two checkpoints; 0: only when it is evicted
        ("redone", "f8"),  # seconds of work that were lost with a machine and done again
        ("first_start", "f8"),  # -1: not yet
        ("end", "f8"),
        ("waited", "f8"),
        ("lost", "f8"),  # GPU-seconds spent on restoring, and on work that was lost with a machine
        ("exposed", "f8"),  # GPU-seconds spent waiting for the network
        ("booked", "f8"),  # `left` when that was last reckoned
        ("ends", "f8"),  # when it is expected to end
        ("listed", "i4"),  # whether it stands in `ending`
        ("at_tier", "f8", (MAX_TIERS,)),  # GPU-seconds at each tier
        # why it waits, or runs where it does: a code of reasons.py and the numbers behind it
        ("reason", "i4"),
        ("holds_out", "i4"),
        ("until", "f8"),
        ("saves", "f8"),
        ("noted", "f8"),  # when that was written, for a job that waits; see reasons.py
    ],
    align=True,
)

HOST = np.dtype(  # the devices of one type in one machine; in depth-first order, so every group is a range
    [
        ("free", "i4"),  # 0 while it is down
        ("hidden", "i4"),  # free, but kept out of sight for the job they are held for
        ("size", "i4"),
        ("kind", "i4"),
        ("down", "i4"),  # failed or drained
        ("machine", "i4"),
        ("group", "i4", (MAX_TIERS,)),
    ],
    align=True,
)

GROUP = np.dtype([("start", "i4"), ("stop", "i4"), ("free", "i4", (MAX_KINDS,))], align=True)  # [tier, group]

PLACE = np.dtype([("host", "i4"), ("count", "i4"), ("next", "i4"), ("spare", "i4")], align=True)

DEMAND = np.dtype(  # all jobs of one size
    [
        ("gpus", "i4"),
        ("waiting", "i4"),
        # the number of the pass in which a place was last looked for in vain, by kind + 1 and tier
        ("failed", "i8", (MAX_KINDS + 1, MAX_TIERS)),
        ("failed_open", "i8", (MAX_KINDS + 1, MAX_TIERS)),  # the same with held devices in sight
    ],
    align=True,
)

OFFER = np.dtype(  # what jobs of one demand have lately met at one tier
    [
        ("timer", "f8"),
        ("fixed", "f8"),  # the timer before anything was learned
        ("count", "i4"),
        ("next", "i4"),
        ("at", "f8", (WINDOW,)),
        ("wait", "f8", (WINDOW,)),
        ("gave_up", "i4", (WINDOW,)),
    ],
    align=True,
)

# `closed`: the number of the pass in which a job found no room in it that nobody of it may pass
QUOTA = np.dtype([("used", "i8"), ("allowed", "i8"), ("closed", "i8")], align=True)

CONSTANTS = np.dtype(
    [
        ("value", "f8", (MAX_CONSTANTS,)),
        ("table", "f8", (TABLE,)),
        # the first call of a function of the policy that failed, with its arguments: see failures.py
        ("failed", "i8"),  # 0: none; else 1 + the hook's number, below zero where it was interpreted
        ("failed_with", "f8", (4,)),
        ("failed_job", "i8", (JOB.itemsize // 8,)),
        ("failed_other", "i8", (JOB.itemsize // 8,)),
        ("failed_offer", "i8", (OFFER.itemsize // 8,)),
    ],
    align=True,
)

STATE = np.dtype(  # one record: counters, and the rules of the policy that are not functions
    [
        ("now", "f8"),
        ("first", "i8"),  # the waiting stand in waiting[first:last]
        ("last", "i8"),
        ("running", "i8"),
        ("ending", "i8"),
        ("hidden", "i8"),  # devices held out of sight
        ("passes", "i8"),
        ("decisions", "i8"),
        ("spare", "i8"),  # unused entries of `places`
        ("free", "i8"),  # devices, all types
        ("kinds", "i8"),  # device types
        ("held", "i8"),  # row of the job that a group is held for; -1: none
        ("reserved", "i8"),  # the last such row of this pass, whether or not the place is still held
        ("held_tier", "i4"),
        ("held_group", "i4"),
        ("held_kind", "i4"),  # device type
        ("held_until", "f8"),  # when that job is expected to start there
        ("held_extra", "i8"),  # devices of the group that it will not need then
        ("held_below", "i8"),  # only jobs of a priority below this are kept off the group; see hold.EVERY_JOB
        # a bound: no running job is less deserving than this, while `bounded`
        ("bounded", "i4"),
        ("worst_priority", "i4"),
        ("worst_key", "f8"),
        ("worst_then", "f8"),
        ("worst_arrival", "f8"),
        ("worst_row", "i8"),
        ("running_wake", "f8"),  # no running job's key changes by itself before
        ("keys_hold", "i4"),  # a running job's key changes only when it wakes, or only falls
        ("preempt", "i4"),
        ("blocked", "i4"),
        ("steady", "i4"),
        ("wakes", "i4"),
        ("period_s", "f8"),
        ("next_round", "f8"),
        ("second_key", "i4"),
        ("look_ahead", "i4"),
        ("move_up", "f8"),
        ("defragment", "f8"),
        ("shape", "f8"),  # slow-down by an uneven shape that nothing is done about
        ("farther", "i4"),  # who steps aside may also go to a farther place
        ("starts", "i8"),
        ("usual", "f8"),  # mean logarithm of the device-seconds of those that started lately
        ("learns", "i4"),
        ("eviction_s", "f8"),
        ("eviction_large_s", "f8"),
        ("min_run_s", "f8"),
        ("budget_s", "f8"),
        ("margin", "f8"),
        ("by_rank", "i4"),  # victims are taken least deserving first, not cheapest first
        ("emptiest", "i4"),  # gangs go where most is free, not where least is
        ("hold_after_s", "f8"),
        ("hold_share", "f8"),
        ("rekey_after_s", "f8"),
        ("next_rekey", "f8"),  # nobody who waits has waited so long before
        ("link_ratio", "f8"),
    ],
    align=True,
)

Array = NDArray[Any]


class World(NamedTuple):
    """All that a pass reads and writes."""

    jobs: Array  # JOB, in order of arrival
    hosts: Array  # HOST
    groups: Array  # GROUP [tier, group]
    places: Array  # PLACE: a linked list per running job, in one arena
    demands: Array  # DEMAND, smallest first
    offers: Array  # OFFER [demand, tier]
    quotas: Array  # QUOTA
    waiting: Array  # job rows, most deserving first
    running: Array  # job rows
    ending: Array  # job rows, soonest first as of when that was last asked; may hold some that no longer run
    decisions: Array  # [n, 3]: (what, job row, reason), in the order taken
    my: Array  # CONSTANTS, one record
    state: Array  # STATE, one record


# What a decision does
START, EVICT, MOVE = 1, 2, 3
