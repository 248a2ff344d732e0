"""The ledger's arithmetic, compiled: small functions on flat arrays, no Python object in sight.

`Books` is all there is to know; the `Ledger` class wraps it for people, and a compiled event loop calls these
very functions on it. A gang is a chain through `following`, so that it needs no storage of its own: whoever
keeps the first device of a job keeps all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from berth.cluster.model import IntArray

NOBODY = -1
TAKEN, OUT_OF_RANGE, HELD, TWICE, SHUT = 0, 1, 2, 3, 4
OPEN, DRAINED, FAILED = 0, 1, 2


class Books(NamedTuple):
    """Who holds what, and how much is free where. Everything but the first four arrays never changes."""

    holder: NDArray[np.int64]  # per device: a job, or NOBODY
    following: IntArray  # per device: the next of its gang, or NOBODY
    free: IntArray  # row 0: all types, row 1 + t: type t; one column per group, level by level
    shut: NDArray[np.int8]  # per machine: OPEN, DRAINED or FAILED
    device_machine: IntArray
    device_type: IntArray
    first_device: IntArray  # per machine, and one past the last
    column: IntArray  # [level, machine] -> column of `free`


@njit(cache=True)
def shift(books: Books, device: int, by: int) -> None:
    """Adds `by` to every count that the device is part of."""
    machine = books.device_machine[device]
    row = books.device_type[device] + 1
    for level in range(books.column.shape[0]):
        column = books.column[level, machine]
        books.free[0, column] += by
        books.free[row, column] += by


@njit(cache=True)
def take(books: Books, job: int, devices: NDArray[np.int64], even_shut: bool) -> tuple[int, int]:
    """Gives all `devices` to a job that holds none, or nothing: (TAKEN, 0), or the reason and the index."""
    total = len(books.holder)
    for index in range(len(devices)):
        device = devices[index]
        reason = TAKEN
        if device < 0 or device >= total:
            reason = OUT_OF_RANGE
        elif books.holder[device] != NOBODY:
            reason = TWICE if books.holder[device] == job else HELD
        elif books.shut[books.device_machine[device]] != OPEN and not even_shut:
            reason = SHUT
        if reason != TAKEN:
            for earlier in range(index):
                books.holder[devices[earlier]] = NOBODY
            return reason, index
        books.holder[device] = job  # a mark as well: met again, the device was named twice
    for index in range(len(devices)):
        device = devices[index]
        books.following[device] = devices[index + 1] if index + 1 < len(devices) else NOBODY
        if books.shut[books.device_machine[device]] == OPEN:
            shift(books, device, -1)
    return TAKEN, 0


@njit(cache=True)
def give_back(books: Books, first: int) -> int:
    """Frees the gang that starts at `first`; what stands in a shut machine becomes unavailable instead."""
    count, device = 0, first
    while device != NOBODY:
        following = books.following[device]
        books.holder[device] = NOBODY
        books.following[device] = NOBODY
        if books.shut[books.device_machine[device]] == OPEN:
            shift(books, device, 1)
        count, device = count + 1, following
    return count


@njit(cache=True)
def list_gang(books: Books, first: int, out: NDArray[np.int64]) -> None:
    """Writes the gang that starts at `first` into `out`, in the order in which it was taken."""
    device = first
    for index in range(len(out)):
        out[index] = device
        device = books.following[device]


@njit(cache=True)
def set_shut(books: Books, machine: int, state: int) -> None:
    """Opens or shuts a machine; only devices that nobody holds change the counts."""
    was_open, is_open = books.shut[machine] == OPEN, state == OPEN
    books.shut[machine] = state
    if was_open == is_open:
        return
    for device in range(books.first_device[machine], books.first_device[machine + 1]):
        if books.holder[device] == NOBODY:
            shift(books, device, 1 if is_open else -1)


@njit(cache=True)
def nearest_level(books: Books, devices: NDArray[np.int64]) -> int:
    """The nearest tier that holds all devices in one group."""
    last = len(books.column) - 1
    for level in range(last):
        column = books.column[level, books.device_machine[devices[0]]]
        together = True
        for device in devices:
            together = together and books.column[level, books.device_machine[device]] == column
        if together:
            return level
    return last
