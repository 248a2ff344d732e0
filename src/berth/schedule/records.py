"""The scheduler's state as compiled code sees it: one record per job, host and group, and queues of rows.

A pass reads many fields of few jobs, so state is kept in arrays of records. The simulator owns one such world
and runs it in virtual time; the live controller keeps one up to date from its journal. Times are in seconds,
sizes in devices. A job's record is declared by concern; a policy reads the fields in `POLICY_FIELDS` and no others.
The counters and cursors of a pass are in pass_records.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.native.kernels import inlined

MAX_TIERS = 8
MAX_DEVICE_TYPES = 8
MANY_FREE = 62  # free devices of one machine from which on they are counted together
SMALL_GANG = 8  # up to this many devices a restore costs `eviction_s`, above it `eviction_large_s`
MAX_PARAMS = 24
STATE_SLOTS = 6  # numbers that a policy may keep with each job
TABLE = 512  # entries of a policy's table
WINDOW = 100  # waits kept per size and tier
CLASSES = 4  # groups of similar jobs from which a job's duration is learned


class JobStatus(IntEnum):
    """What has become of a job so far."""

    FUTURE = 0
    WAITING = 1
    RUNNING = 2
    DONE = 3
    REFUSED = 4  # no place of the cluster, or no quota, ever holds it


class EstimateKind(IntEnum):
    """What the scheduler knows of a job's duration."""

    TRACKED = 0  # its remaining time, to `estimate_error`
    LEARNED = 1  # its user's estimate if there is one, and jobs like it that have ended
    NONE = 2  # how long it has run


class Action(IntEnum):
    """What a pass decides about a job."""

    START = 1
    EVICT = 2
    MOVE = 3


ORDER = [  # what decides which of two jobs goes first: see queue.precedes
    ("priority", "i4"),  # highest first
    ("state", "i4"),  # JobStatus
    ("order_key", "f8"),  # the policy's `order`, smallest first
    ("tie_break", "f8"),  # the policy's `tie_break`, smallest first
    ("arrival_s", "f8"),
    ("id", "i8"),  # equal to the row
]
_REQUEST = [  # what was asked for
    ("gpus", "i4"),
    ("demand", "i4"),  # index of its GPU count among all distinct ones
    ("device_type", "i4"),  # the type it needs; -1: any in `device_type_mask`
    ("device_type_mask", "i4"),  # types it accepts, one bit each
    ("nearest_tier", "i4"),  # nearest tier that can ever hold it
    ("widest_tier", "i4"),  # farthest tier its user allows
    ("user", "i4"),  # numbered in order of appearance
    ("quota", "i4"),  # virtual cluster it is charged to; -1: none
    ("work_s", "f8"),  # seconds it needs at the nearest placement, alone; where that is unknown, as estimated
    ("preemptible", "i4"),  # 0: once started it is not evicted for others
    ("movable", "i4"),  # 0: nor migrated
]
_ASKED = [  # what the policy said of it while it waits: see asking.py
    ("asked_tier", "i4"),  # the widest tier that it accepts
    ("answers", "i4"),  # `Demand.answers` when it was asked; -1: not yet
    ("asked_until_s", "f8"),  # when that may change by itself
]
_PROGRESS = [
    ("estimated_remaining_s", "f8"),  # work left at the nearest placement, as far as the scheduler knows
    ("true_remaining_s", "f8"),  # work left in truth; policies do not see it
    ("estimate_error", "f8"),  # estimated / true remaining time: 1 where durations are known
    ("attained_gpu_s", "f8"),  # service of all attempts
    ("ran_s", "f8"),  # running time of all attempts
    ("updated_s", "f8"),  # time at which these were last brought up to date
    ("restored_at_s", "f8"),  # until then the attempt restores its state and makes no progress
    ("speed", "f8"),  # seconds of work per second
    ("next_checkpoint_s", "f8"),  # of the current attempt; inf: none
    ("checkpoint_interval_s", "f8"),  # 0: it checkpoints only when it is evicted
    ("checkpointed_remaining_s", "f8"),  # true_remaining_s at the last checkpoint
]
_ESTIMATE = [  # how long it takes, where that is not known: see estimates.py
    ("estimate_kind", "i4"),  # EstimateKind
    ("spread_row", "i4"),  # row of the tables for the spread of its duration
    # rows of `World.history` of jobs like it, from the most to the least alike
    ("classes", "i4", (CLASSES,)),
    ("trust_class", "i4"),  # row for the estimates of its user
    ("given_s", "f8"),  # its user's estimate of the work; 0: none
    ("median_work_s", "f8"),  # median of its work before it has started
    ("done_s", "f8"),  # work done so far
    ("index_s", "f8"),  # least expected seconds of work per completion
    ("index_until_s", "f8"),  # when that changes if it goes on running; inf: it only falls
    ("restore_s", "f8"),  # what stopping and restoring it costs
]
_PLACEMENT = [
    ("tier", "i4"),  # tier at which it runs; -1: it does not run
    ("first_place", "i4"),  # head of its list of places
    ("running_index", "i4"),  # its index in `World.running`
    ("in_ending_list", "i4"),
    ("in_apart_list", "i4"),
    (
        "spared",
        "i4",
    ),  # a hint: since it started it was found that it may be evicted for no job, see victims.py
    ("returned", "i4"),  # within a pass: it runs, but its devices are counted as free for the moment
    ("queued_since_s", "f8"),  # arrival or last eviction
    ("started_s", "f8"),  # start of the current attempt
    ("expected_end_s", "f8"),
    ("last_eviction_s", "f8"),  # -inf: never
    ("evictions", "i4"),
    ("moves", "i4"),
    ("first_start_s", "f8"),  # -1: not yet
    ("end_s", "f8"),
    ("waited_s", "f8"),
]
_LOCALITY = [  # what distance costs it
    ("compute_share", "f8"),  # share of an iteration at the nearest placement that is computation
    ("skew", "f8"),  # largest tensor / all parameters
    # iteration time at each tier / at the nearest tier, on as few machines as hold it there and with idle links
    ("slowdown", "f8", (MAX_TIERS,)),
    ("message_bytes", "f8"),  # sent per iteration; 0: distance costs nothing
    ("delay_timer_s", "f8", (MAX_TIERS,)),  # how long to wait for each tier
    ("shape_imbalance", "f8", (3,)),  # three points of slowdown over imbalance: see balance.py
    ("shape_slowdown", "f8", (3,)),
    ("imbalance_slowdown", "f8"),  # of the place that is being considered
    ("typical_gpu_s", "f8"),  # service that recent jobs needed; set before `spread` is called
    ("traffic_row", "i4"),  # row of its model and size among the traffic records
]
_SHAPE = [  # of a job with parts or alternatives: see shapes.py
    ("first_shape", "i4"),  # its shapes are shapes[first_shape : first_shape + shape_count]
    ("shape_count", "i4"),  # 0: a plain gang
    ("shape", "i4"),  # the one that this record describes: it runs so, or waits to; -1: a plain gang
    ("vector", "i4"),  # that shape needs several types, or has parts that are tied to a tier
    (
        "counted_shape",
        "i4",
    ),  # while it waits: the shape whose types it is counted for, see scarcity.py; -1: not yet
    ("other_shape", "i4"),  # while it waits: the shape in which it could start now; -1: none
    ("reshaped_s", "f8"),  # when a change of its shape was last considered
    ("deferred_s", "f8"),  # how long it has waited so far though it could have started
    ("deferred_at_s", "f8"),  # when that was last counted
]
SHAPE_NUMBERS = ("first_shape", "shape", "counted_shape", "other_shape")  # of these, rows of `World.shapes`
_POLICY = [("policy_state", "f8", (STATE_SLOTS,))]  # the fields of the policy's `Job`, written by `update`
_EXPLANATION = [  # why it waits, or runs where it does: a code of reasons.py and the numbers behind it
    ("reason", "i4"),
    ("waits_for_tier", "i4"),
    ("until_s", "f8"),
    ("saves_s", "f8"),
    ("explained_s", "f8"),  # when this was written, for a waiting job
]
_CONCERNS: list[list[Any]] = [
    ORDER,
    _REQUEST,
    _ASKED,
    _PROGRESS,
    _ESTIMATE,
    _PLACEMENT,
    _LOCALITY,
    _SHAPE,
    _POLICY,
    _EXPLANATION,
]
# in memory, fields that a pass reads of many jobs lie side by side
_IN_MEMORY: list[list[Any]] = [
    ORDER,
    _PROGRESS,
    _PLACEMENT,
    _REQUEST,
    _ASKED,
    _EXPLANATION,
    _SHAPE,
    _POLICY,
    _ESTIMATE,
    _LOCALITY,
]
JOB = np.dtype([field for concern in _IN_MEMORY for field in concern], align=True)
# how long a job really takes, and how records are linked, is not for policies
INTERNAL_FIELDS = {
    *("true_remaining_s", "checkpointed_remaining_s", "next_checkpoint_s", "checkpoint_interval_s"),
    *("spread_row", "classes", "trust_class", "median_work_s"),
    "policy_state",  # which policies read by the names that they declare
    *("first_shape", "shape_count", "shape", "vector", "counted_shape", "other_shape", "reshaped_s"),
    *("deferred_s", "deferred_at_s", "returned", "spared"),
    *("asked_tier", "answers", "asked_until_s"),
    *(
        "order_key",
        "tie_break",
        "demand",
        "first_place",
        "running_index",
        "in_ending_list",
        "in_apart_list",
        "traffic_row",
    ),
    *(
        "expected_end_s",
        "end_s",
        "explained_s",
        "reason",
        "waits_for_tier",
        "until_s",
        "saves_s",
    ),
}
POLICY_FIELDS = tuple(
    field[0] for concern in _CONCERNS for field in concern if field[0] not in INTERNAL_FIELDS
)
RENAMED = {  # fields, hooks and rules of earlier versions, for hints; see also rules.MOVED
    "arrival": "arrival_s",
    "attained": "attained_gpu_s",
    "bent": "imbalance_slowdown",
    "compute": "compute_share",
    "doubt": "estimate_error",
    "emptiest": "worst_fit",
    "evicted": "last_eviction_s",
    "first_start": "first_start_s",
    "fixed": "initial_timer_s",
    "floor": "nearest_tier",
    "kind": "device_type",
    "kinds": "device_type_mask",
    "learns": "learn_timers",
    "look_ahead": "relax_locality",
    "message": "message_bytes",
    "ran": "ran_s",
    "reach": "allowed_tier",
    "remaining": "estimated_remaining_s",
    "shape": "imbalance_tolerance",
    "since": "queued_since_s",
    "slow": "slowdown",
    "started": "started_s",
    "then": "tie_break",
    "timer": "delay_timer_s",
    "touched": "updated_s",
    "usual": "typical_gpu_s",
    "waited": "waited_s",
    "wakes": "wake_running",
    "widest": "widest_tier",
    "work": "work_s",
}

HOST = np.dtype(  # the devices of one type in one machine; depth-first, so that every group is a range
    [
        ("free", "i4"),  # 0 while it is down
        ("masked", "i4"),  # free, but reserved: not counted in `free`
        ("size", "i4"),
        ("device_type", "i4"),
        ("down", "i4"),  # how many faults and drains keep it down
        ("machine", "i4"),
        ("group", "i4", (MAX_TIERS,)),
    ],
    align=True,
)

GROUP = np.dtype(  # [tier, group]
    [("start", "i4"), ("stop", "i4"), ("free", "i4", (MAX_DEVICE_TYPES,))], align=True
)

# [group of tier 1]: machines by their free devices of each type, so that a search skips racks that can't be better
RACK = np.dtype(
    [
        # with 0, 1, ... free; in the last entry also those with more
        ("machines", "i4", (MAX_DEVICE_TYPES, MANY_FREE + 1)),
        ("present", "i8", (MAX_DEVICE_TYPES,)),  # one bit for each entry that is not 0
    ],
    align=True,
)

# `part`: of a shape, where the part is tied to a tier; -1: the parts of a shape that are not share its other places
PLACE = np.dtype(
    [("host", "i4"), ("count", "i4"), ("next", "i4"), ("spare", "i4"), ("part", "i4")], align=True
)

SHAPE = np.dtype(  # one way to run a job; jobs with the same alternatives share them
    [
        ("need", "i4", (MAX_DEVICE_TYPES,)),
        ("devices", "i4"),  # of all types
        ("gpus", "i4"),  # what it is charged for: GPUs, or all devices of a shape without any
        ("device_type", "i4"),  # the only type it needs; -1: several
        ("vector", "i4"),
        ("nearest_tier", "i4"),
        ("widest_tier", "i4"),
        ("first_tied", "i4"),  # its tied parts are tied[first_tied : first_tied + tied_count]
        ("tied_count", "i4"),
        ("slowdown", "f8", (MAX_TIERS,)),
        ("unit_s", "f8"),  # seconds per unit of work at the nearest placement
        ("usd_per_hour", "f8"),
        ("priced", "i8"),  # the version of prices for which the next two hold
        ("price_waiting", "f8"),  # what its devices cost others, to a job that waits
        ("price_running", "f8"),  # and to one that runs
        # of the first shape of an offer, for jobs that are not large and for large ones: the version of prices for
        # which the next holds, and the shape with the lowest cost at its nearest placement
        ("compared", "i8", (2,)),
        ("cheapest", "i4", (2,)),
        ("message_bytes", "f8"),
        ("traffic_row", "i4"),
        ("gang", "i4"),  # a plain gang on one of the types that it accepts: see shape_table.write_gang
        ("usd_excess", "f8"),  # dollars of the work in this shape / in the offer's cheapest, less 1
        ("type_excess", "f8"),  # the same for the cheapest of the shapes on the same types
        # of the first shape of an offer: seconds per unit of work in the fastest that a large job refuses; inf: none
        ("refused_s", "f8"),
        ("least_share", "f8"),  # GPU-seconds of the work in the offer's shape that needs least / in this one
        ("failed", "i8", (MAX_TIERS,)),  # epoch of the last search that found no place
        ("failed_open", "i8", (MAX_TIERS,)),  # the same with reserved devices counted
    ],
    align=True,
)

TIED = np.dtype(  # a part that must lie within one group of a tier; those of a shape: tightest tier first
    [("tier", "i4"), ("part", "i4"), ("need", "i4", (MAX_DEVICE_TYPES,))], align=True
)

DEMAND = np.dtype(  # all jobs of one size
    [
        ("gpus", "i4"),
        ("waiting", "i4"),
        # what the policy said of such jobs under another number no longer holds: timers changed
        ("answers", "i4"),
    ],
    align=True,
)

WAIT_STATS = np.dtype(  # recent waits of jobs of one size for one tier
    [
        ("timer_s", "f8"),
        ("initial_timer_s", "f8"),
        ("count", "i4"),
        ("next", "i4"),
        ("at_s", "f8", (WINDOW,)),
        ("wait_s", "f8", (WINDOW,)),
        ("gave_up", "i4", (WINDOW,)),
    ],
    align=True,
)

HISTORY = np.dtype(  # logarithms of the work of jobs that have ended, or of work over estimate
    [("count", "f8"), ("mean", "f8"), ("variance", "f8")], align=True
)

# `closed`: epoch in which a job of this quota blocked all later ones of it
QUOTA = np.dtype([("used", "i8"), ("allowed", "i8"), ("closed", "i8")], align=True)

USER = np.dtype(  # what one user's jobs hold, and what they have used
    [
        ("gpus", "i8"),  # devices of all types
        ("devices", "i8", (MAX_DEVICE_TYPES,)),
        ("gpu_s", "f8"),  # as of `updated_s`
        ("updated_s", "f8"),
    ],
    align=True,
)

# the totals that a hook reads; those of a user and a quota are of the job it is called for
CLUSTER = np.dtype(
    [
        ("device_types", "i8"),
        ("devices", "i8", (MAX_DEVICE_TYPES,)),  # installed
        ("free", "i8", (MAX_DEVICE_TYPES,)),
        ("user_gpus", "i8"),
        ("user_devices", "i8", (MAX_DEVICE_TYPES,)),
        ("user_gpu_s", "f8"),
        ("quota_gpus", "i8"),
        ("quota_limit", "i8"),
    ],
    align=True,
)

PARAMS = np.dtype(
    [
        ("value", "f8", (MAX_PARAMS,)),
        ("table", "f8", (TABLE,)),
        # the first call of a policy's function that failed, with its arguments: see failures.py
        # 0: none; else 1 + the hook's number, negative where it was interpreted, and where a limit stopped it
        ("failed", "i8"),
        ("failed_with", "f8", (4,)),
        ("failed_job", "i8", (JOB.itemsize // 8,)),
        ("failed_other", "i8", (JOB.itemsize // 8,)),
        ("failed_stats", "i8", (WAIT_STATS.itemsize // 8,)),
        ("failed_cluster", "i8", (CLUSTER.itemsize // 8,)),
    ],
    align=True,
)

RULES = np.dtype(  # what a policy asks for beside its functions: see policy.Rules
    [
        ("preempt", "i4"),
        ("blocked", "i4"),
        ("wake_running", "i4"),
        ("static_order", "i4"),
        ("monotone_order", "i4"),
        ("has_tie_break", "i4"),
        ("has_update", "i4"),
        ("uses_cluster", "i4"),  # some hook is called with the totals of the cluster
        ("ranks_by_cluster", "i4"),  # and the order depends on them
        ("period_s", "f8"),
        ("relax_locality", "i4"),
        ("migrate_gain", "f8"),
        ("defragment", "f8"),
        ("defragment_farther", "i4"),
        ("imbalance_tolerance", "f8"),
        ("reserve_after_s", "f8"),
        ("reserve_share", "f8"),
        ("reserve_in_order", "i4"),
        ("reorder_after_s", "f8"),
        ("min_run_s", "f8"),
        ("eviction_interval_s", "f8"),
        ("gain_margin", "f8"),
        ("victims_by_order", "i4"),
        ("cost_by_order", "i4"),
        ("static_gain", "i4"),  # what a waiting job gains does not change
        ("worst_fit", "i4"),
        ("scatter_up_to", "i8"),
        ("link_ratio", "f8"),
        ("learn_timers", "i4"),
        ("eviction_s", "f8"),
        ("eviction_large_s", "f8"),
    ],
    align=True,
)

DECISION = np.dtype(
    [
        ("what", "i4"),  # Action
        ("job", "i4"),
        ("reason", "i4"),
        ("from_tier", "i4"),  # -1: it did not run
        ("to_tier", "i4"),  # -1: it no longer runs
        ("ran_since_s", "f8"),  # start of the attempt that ends
    ],
    align=True,
)

Array = NDArray[Any]


class World(NamedTuple):
    """All that a pass reads and writes."""

    jobs: Array  # JOB, in order of arrival
    hosts: Array  # HOST
    groups: Array  # GROUP [tier, group]
    racks: Array  # RACK [group of tier 1]; empty where there is one tier
    places: Array  # PLACE: a linked list per running job, in one arena
    demands: Array  # DEMAND, smallest first
    wait_stats: Array  # WAIT_STATS [demand, tier]
    quotas: Array  # QUOTA
    users: Array  # USER
    history: Array  # HISTORY, by class of jobs
    cluster: Array  # CLUSTER, one record: see totals.py
    waiting: Array  # job rows, first to start first
    segments: Array  # SEGMENT
    running: Array  # job rows
    ending: Array  # job rows by expected end as of the last look; some may no longer run
    # rows of all jobs that run on several machines, where policies move those; some may no longer
    apart: Array
    victims: Array  # rows of running jobs that may be evicted, by order; entries of `threatened`, for gain
    threatened: Array  # THREATENED: running jobs that waiting ones may displace
    decisions: Array  # DECISION, in the order taken
    params: Array  # PARAMS, one record
    rules: Array  # RULES, one record
    shapes: Array  # SHAPE, those of a job side by side
    tied: Array  # TIED
    # of the pass, one record each
    state: Array  # STATE
    bound: Array  # BOUND
    walk: Array  # WALK
    reservation: Array  # RESERVATION
    victim_search: Array  # VICTIM_SEARCH
    scarcity: Array  # SCARCITY
    shape_choice: Array  # SHAPE_CHOICE


@inlined
def places_of(world: World, first: int) -> Iterator[Any]:
    """The places in a list, one after the other."""
    while first >= 0:
        place = world.places[first]
        yield place
        first = place.next
