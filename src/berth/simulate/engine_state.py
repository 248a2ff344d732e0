"""What the event loop keeps beside the scheduler's world: clock, accounts of jobs, faults, traffic, the log."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.network._contention_kernels import FlowArrays, LinkLoads
from berth.network._sharing_kernels import ShareArrays
from berth.network.fabric import FabricArrays
from berth.schedule.records import MAX_TIERS

Array = NDArray[Any]


class NetworkMode(IntEnum):
    """What the network does to a job."""

    OFF = 0  # it costs nothing
    STATIC = 1  # each placement is modelled alone
    SHARED = 2  # links are shared by the jobs that use them


class FaultKind(IntEnum):
    """What befalls a machine; `Event` has the same in the same order."""

    FAIL = 1
    REPAIR = 2
    DRAIN = 3
    UNDRAIN = 4


class Event(IntEnum):
    """What the log records."""

    ARRIVED = 1
    STARTED = 2
    EVICTED = 3
    MOVED = 4
    FINISHED = 5
    FAILED = 6
    REPAIRED = 7
    DRAINED = 8
    UNDRAINED = 9


ACCOUNT = np.dtype(  # one per job
    [
        ("finish_s", "f8"),  # when it finishes at its current speed
        ("heap_index", "i4"),  # its index in the heap; -1: it is not there
        ("accounted_remaining_s", "f8"),  # true_remaining_s when exposed communication was last accounted for
        ("exposed_comm_gpu_s", "f8"),  # spent waiting for the network
        ("lost_gpu_s", "f8"),  # spent on restoring, and on work that was lost with a machine
        ("redone_s", "f8"),  # work that was lost with a machine and done again
        ("tier_gpu_s", "f8", (MAX_TIERS,)),  # service at each tier
        ("shape", "i4"),  # that it runs in, or ran in last; -1: none yet
        ("reshapes", "i4"),  # attempts in another shape than the one before
        ("usd", "f8"),  # price of the devices it held, where it has shapes or chooses among types
    ],
    align=True,
)

TRAFFIC = np.dtype(  # one iteration of a model on some number of GPUs of one type
    [
        ("compute_s", "f8"),
        ("all_reduce", "f8"),
        ("all_to_all", "f8"),
        ("server", "f8"),
        ("algorithm", "i4"),  # of the all-reduce
        ("overlap", "f8"),
        ("forward", "f8"),
        ("near_s", "f8"),  # the iteration at the nearest placement, alone
    ],
    align=True,
)

FAULT = np.dtype([("time", "f8"), ("machine", "i4"), ("what", "i4")], align=True)

LOG = np.dtype(
    [
        ("time", "f8"),
        ("job", "i8"),
        ("what", "i4"),
        ("tier", "i4"),
        ("reason", "i4"),
        ("gpus", "i4"),
        ("places", "i8"),  # first of its entries in the list of places
        ("count", "i4"),
        ("shape", "i4"),  # -1: a plain gang
        ("until", "f8"),
        ("saves", "f8"),
    ],
    align=True,
)
LOG_PLACE = np.dtype([("machine", "i4"), ("device_type", "i4"), ("gpus", "i4"), ("part", "i4")], align=True)

CLOCK = np.dtype(
    [
        ("now", "f8"),
        ("wake", "f8"),
        ("heap", "i8"),  # size
        ("arrived", "i8"),
        ("finished", "i8"),
        ("events", "i8"),
        ("moments", "i8"),
        ("fault", "i8"),  # next
        ("log", "i8"),  # used
        ("log_places", "i8"),
        ("logging", "i4"),
        ("network", "i4"),
        ("device_types", "i4"),
        ("evictions", "i8"),
        ("moves", "i8"),
        ("idle_wanted_s", "f8"),  # device-seconds free while a job waited that asks for no more than was free
        ("checkpoint_s", "f8"),  # interval between checkpoints; 0: a job checkpoints only when it is evicted
    ],
    align=True,
)


class EngineState(NamedTuple):
    """The event loop's own state."""

    clock: Array  # CLOCK, one record
    accounts: Array  # ACCOUNT, by job row
    heap: Array  # running rows by finish time
    faults: Array  # FAULT, by time
    traffic: Array  # TRAFFIC
    log: Array  # LOG
    log_places: Array  # LOG_PLACE


class Net(NamedTuple):
    """The network's arrays."""

    fabric: FabricArrays
    shares: ShareArrays
    flows: FlowArrays  # by job row
    loads: LinkLoads


def new_accounts(jobs: Array) -> Array:
    """Accounts of jobs that have not started."""
    accounts = np.zeros(len(jobs), ACCOUNT)
    start_accounts(accounts, jobs)
    return accounts


def start_accounts(accounts: Array, jobs: Array) -> None:
    """Writes accounts, which are zero, of jobs that have not started."""
    accounts["heap_index"] = accounts["shape"] = -1
    accounts["accounted_remaining_s"] = jobs["true_remaining_s"]
