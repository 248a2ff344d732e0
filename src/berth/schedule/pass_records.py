"""The records of a pass: its counters and cursors, and what its searches have found, one record per concern.

A kernel reads `STATE` and the record of its own concern. `World` has one of each, and arrays of SEGMENT and THREATENED.
What a record holds may outlast the pass: the segments of the queue, running jobs nearly in order, average demand.
"""

from __future__ import annotations

import numpy as np

from berth.schedule.records import MAX_DEVICE_TYPES, MAX_TIERS, ORDER

STATE = np.dtype(  # counters and cursors that every pass uses
    [
        ("now", "f8"),
        ("queue_start", "i8"),  # waiting[queue_start:queue_stop] is the queue
        ("queue_stop", "i8"),
        ("explained", "i8"),  # every job that waits has a reason, and is asked in every pass
        ("running", "i8"),
        ("preemptible", "i8"),  # running jobs that can be preempted
        ("ending", "i8"),
        ("apart", "i8"),
        ("free", "i8"),  # devices of all types
        ("masked", "i8"),  # free devices that are reserved
        ("spare", "i8"),  # unused entries of `places`
        ("decisions", "i8"),
        ("device_types", "i8"),
        ("search_epoch", "i8"),  # a search for a shape that failed in this epoch need not be repeated
        ("running_wake_s", "f8"),  # no running job's order changes by itself before
        ("next_round_s", "f8"),
        ("next_reorder_s", "f8"),  # no waiting job has waited `reorder_after_s` before
        ("starts", "i8"),
        ("typical_log_gpu_s", "f8"),  # mean logarithm of the service of recently started jobs
        # no group of a tier has more free devices of a type: [0] all devices, [1] without reserved ones, see groups.py
        ("most_free", "i4", (2, MAX_DEVICE_TYPES, MAX_TIERS)),
    ],
    align=True,
)

# the running job that goes last, while `valid`: a lower bound, since a running job's order only improves
BOUND = np.dtype([("valid", "i4"), *(field for field in ORDER if field[0] != "state")], align=True)

SEGMENT = np.dtype(  # consecutive jobs of the queue: see segments.py
    [
        ("next", "i4"),  # the segment behind it; -1: none
        ("count", "i4"),
        ("answers", "i4"),  # `Walk.answers` for which the rest holds; -1: it does not
        ("priority", "i4"),  # the lowest
        ("fixed", "i4"),  # whether a job can't be preempted
        ("gains", "i4"),  # whether a job may gain enough for others to be evicted
        ("demands", "i8"),  # sizes of its jobs: bit `demand` modulo 64
        ("until_s", "f8"),  # when an answer may change by itself
        ("shortest_s", "f8"),  # no job runs shorter at the tier that it accepts; -1: not computed yet
        ("need", "i4", (MAX_TIERS,)),  # devices of the smallest job that accepts this tier and no wider one
        ("need_spread", "i4", (MAX_TIERS,)),  # the same by the widest tier that its user allows
    ],
    align=True,
)

WALK = np.dtype(  # the segments of the queue, and how far a walk through them is: see segments.py, asking.py
    [
        ("keeps_answers", "i8"),  # jobs are asked again when their answers may have changed
        ("segmented", "i8"),  # the queue is in segments, and jobs that can't start are passed over
        ("answers", "i8"),  # what segments knew under another number no longer holds
        ("first_segment", "i8"),
        ("unused_segment", "i8"),  # the first of a list
        ("next_segment", "i8"),  # the cursor: the segment behind the one that ends at `segment_stop`
        ("segment_stop", "i8"),
        ("segment", "i8"),  # which that is; -1: unknown
        ("need_limits", "i4", (2, MAX_TIERS)),  # `State.most_free` over all types, as of the walk
    ],
    align=True,
)

RESERVATION = np.dtype(  # the group that is reserved within a pass: see reservation.py
    [
        ("holder", "i8"),  # row of the job that it is reserved for; -1: none
        ("last_holder", "i8"),  # the last such row of this pass, whether or not it is still reserved
        ("tier", "i4"),
        ("group", "i4"),
        ("device_type_mask", "i4"),  # the types that are reserved, one bit each
        ("until_s", "f8"),  # when that job is expected to start there
        ("spare", "i8"),  # devices of the group that it will not need then
        ("below_priority", "i8"),  # the group is reserved from jobs of a priority below this
        ("oldest_s", "f8"),  # no waiting job has waited since before this
    ],
    align=True,
)

THREATENED = np.dtype(  # a running job that a waiting one may displace: see threatened.py
    [
        ("order_key", "f8"),  # of now if the policy was asked, else of the last look
        ("row", "i4"),
        ("priority", "i4"),
        ("running_index", "i4"),
        ("evictable", "i2"),
        ("asked", "i2"),
        ("cost_s", "f8"),  # for gain: what it costs to evict it, if the policy was asked
        ("until_s", "f8"),  # for gain: until when it may not be evicted
    ],
    align=True,
)

VICTIM_SEARCH = np.dtype(  # running jobs that may be evicted, as far as they are known
    [
        ("threatened", "i8"),  # entries of `World.threatened`,
        ("all_asked", "i8"),  # which are in order, last ones last, rather than a heap
        # by order: rows of `World.victims`, see preempt_by_order.py
        ("known", "i8"),
        ("offered", "i8"),
        ("settled", "i8"),
        # for gain: see victims.py
        ("ranked", "i8"),  # of `World.threatened`; -1: they are to be found again
        ("ranked_priority", "i8"),  # no job in it has a higher one,
        ("ranked_types", "i8"),  # and all hold devices of one of these types, one bit each
        ("room_gpus", "i8"),  # for jobs of this size and tier, the group in which victims make room first
        ("room_tier", "i8"),
        ("room_group", "i8"),
        ("room_considered", "i8"),  # the victims among the first ranked ones that are in it,
        ("room_victims", "i8"),  # which are listed in `World.victims`
    ],
    align=True,
)

SCARCITY = np.dtype(  # how scarce each device type is, for jobs with alternatives: see scarcity.py
    [
        ("waiting_for", "i8", (MAX_DEVICE_TYPES,)),  # jobs in the queue that would take it, times SHARES
        ("mean_waiting", "f8", (MAX_DEVICE_TYPES,)),  # the same over time
        ("wanted", "i8", (MAX_DEVICE_TYPES,)),  # devices of it that those jobs would take, times SHARES
        # those of `waiting_for` whose priority is too low to count
        ("waiting_below", "i8", (MAX_DEVICE_TYPES,)),
        ("wanted_below", "i8", (MAX_DEVICE_TYPES,)),
        ("arrivals", "i8"),  # of jobs with alternatives
        ("mean_usd", "f8"),  # that recent ones cost in their cheapest shapes, times the seconds of an hour
        ("priced_for", "i8"),  # the priority for which prices were set
        ("price_version", "i8"),
        # seconds that a device-second costs each job that waits for it
        ("price_s", "f8", (MAX_DEVICE_TYPES,)),
        ("priced_s", "f8"),  # when these were computed
    ],
    align=True,
)

SHAPE_CHOICE = np.dtype(  # what a pass knows while jobs choose their shapes: see shape_choice.py
    [
        ("promised", "i8", (MAX_DEVICE_TYPES,)),  # devices that jobs ahead in this pass wait for
        ("looked_ahead", "i8"),  # jobs of this pass for which ends of running jobs were looked at
        ("ends", "i8"),  # rows of `World.ending` that are in order as of `ends_s`
        ("ends_s", "f8"),
        # when a job of this pass that waits for a better shape gives up, if nothing happens
        ("wake_s", "f8"),
    ],
    align=True,
)
