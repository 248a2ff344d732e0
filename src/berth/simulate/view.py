"""What the event loop keeps beside the scheduler's world: the heap of ends, faults, traffic, the log."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.network._contention_kernels import FlowArrays, LinkLoads
from berth.network._sharing_kernels import ShareArrays
from berth.network.fabric import FabricArrays

Array = NDArray[Any]

# The network: costs nothing; each placement is judged alone; links are shared by those who cross them
OFF, STATIC, SHARED = 0, 1, 2

TRAFFIC = np.dtype(  # one iteration of a model on so many GPUs of one kind
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
FAIL, REPAIR, DRAIN, UNDRAIN = 1, 2, 3, 4

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
        ("until", "f8"),
        ("saves", "f8"),
    ],
    align=True,
)
LOG_PLACE = np.dtype([("machine", "i4"), ("kind", "i4"), ("gpus", "i4")], align=True)
ARRIVED, STARTED, EVICTED, MOVED, FINISHED, FAILED, REPAIRED, DRAINED, UNDRAINED = range(1, 10)

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
        ("kinds", "i4"),  # device types
        ("evictions", "i8"),
        ("moves", "i8"),
        ("idle_wanted_s", "f8"),  # device-seconds free while a job waited that asks for no more than was free
        ("checkpoint_s", "f8"),  # a running job saves its state so often; 0: only when it is evicted
    ],
    align=True,
)


class Course(NamedTuple):
    """The loop's own books."""

    clock: Array  # CLOCK, one record
    heap: Array  # running rows by the time they end
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
