"""Who holds which device: a gang gets all of its devices or none, and no device is ever held twice.

Free devices are counted as they come and go, per machine, per group of every tier and per device type, so
that asking costs one look. A machine can be shut (drained or failed): what nobody holds on it is no longer
free, a running job keeps what it has, and what that job releases becomes unavailable instead of free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from berth.cluster import _ledger_kernels as kernels
from berth.cluster._ledger_kernels import DRAINED, FAILED, NOBODY, OPEN, TAKEN, Books
from berth.cluster.model import Cluster, IntArray
from berth.errors import LedgerError

ScalarT = TypeVar("ScalarT", bound=np.generic)
Devices = Sequence[int] | NDArray[np.integer]
_COMPLAINTS = {
    kernels.OUT_OF_RANGE: "there is no device {device}",
    kernels.HELD: "device {device} is held by job {holder}",
    kernels.TWICE: "device {device} is named twice",
    kernels.SHUT: "device {device} stands in machine {machine}, which takes no new jobs",
}


@dataclass(frozen=True, slots=True)
class Removal:
    """What `Ledger.remove` took away, and the way back."""

    ledger: Ledger
    job: int
    devices: NDArray[np.int64]

    def undo(self) -> None:
        """Gives the job its devices again, in a shut machine too; fails if one was taken meanwhile."""
        self.ledger._take(self.job, self.devices, even_shut=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a ledger at one moment."""

    holder: NDArray[np.int64]
    following: IntArray
    free: IntArray
    shut: NDArray[np.int8]
    gangs: dict[int, tuple[int, int]]


class Ledger:
    """The devices of one cluster and the jobs that hold them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.books, self._starts = _open_books(cluster)
        self._gangs: dict[int, tuple[int, int]] = {}  # job -> (first device of its chain, how many)

    def allocate(self, job: int, devices: Devices) -> None:
        """Gives a job its whole gang, or raises LedgerError and changes nothing."""
        self._take(job, _device_ids(devices), even_shut=False)

    def release(self, job: int) -> NDArray[np.int64]:
        """Takes everything from a job; returns its devices in the order in which they were given."""
        devices = self.devices_of(job)
        kernels.give_back(self.books, self._gangs.pop(job)[0])
        return devices

    def remove(self, job: int) -> Removal:
        """Like `release`, for a what-if: the answer undoes it."""
        return Removal(self, job, self.release(job))

    def devices_of(self, job: int) -> NDArray[np.int64]:
        """The devices of a job, in the order in which they were given."""
        if job not in self._gangs:
            raise LedgerError(f"job {job} holds nothing")
        first, count = self._gangs[job]
        devices = np.empty(count, dtype=np.int64)
        kernels.list_gang(self.books, first, devices)
        return devices

    @property
    def jobs(self) -> tuple[int, ...]:
        """Jobs that hold devices, in the order in which they came."""
        return tuple(self._gangs)

    @property
    def holder(self) -> NDArray[np.int64]:
        """Per device the job that holds it, or -1. A view: it follows the ledger and can't be written."""
        return _read_only(self.books.holder)

    @property
    def shut(self) -> NDArray[np.int8]:
        """Per machine 0 (open), 1 (drained) or 2 (failed). A view."""
        return _read_only(self.books.shut)

    def tier_of(self, devices: Devices) -> int:
        """The nearest tier that holds all these devices in one group."""
        ids = _device_ids(devices)
        if ids.min() < 0 or ids.max() >= self.cluster.devices:
            raise LedgerError(f"there is no device {ids.min() if ids.min() < 0 else ids.max()}")
        return int(kernels.nearest_level(self.books, ids))

    def free_by(self, level: int, device_type: int | None = None) -> IntArray:
        """Free devices of every group at a level, of all types or of one. A view."""
        row = 0 if device_type is None else device_type + 1
        return _read_only(self.books.free[row, self._starts[level] : self._starts[level + 1]])

    def free(self, level: int, group: int, device_type: int | None = None) -> int:
        """Free devices of one group."""
        return int(self.free_by(level, device_type)[group])

    def free_of_type(self, device_type: int) -> int:
        """Free devices of one type in the whole cluster."""
        return self.free(len(self.cluster.tiers) - 1, 0, device_type)

    @property
    def total_free(self) -> int:
        """Free devices of the whole cluster."""
        return self.free(len(self.cluster.tiers) - 1, 0)

    def drain(self, machine: int) -> None:
        """No new jobs on this machine; those that run there keep running."""
        self._set_shut(machine, DRAINED)

    def fail(self, machine: int) -> tuple[int, ...]:
        """The machine is gone; returns the jobs that hold devices there, which the caller must release."""
        self._set_shut(machine, FAILED)
        holders = self.books.holder[self._devices_in(machine)]
        return tuple(int(job) for job in np.unique(holders) if job != NOBODY)

    def undrain(self, machine: int) -> None:
        """The machine takes jobs again, after a drain or a failure."""
        self._set_shut(machine, OPEN)

    def snapshot(self) -> Snapshot:
        """A copy of the state, for `restore`."""
        books = self.books
        arrays = (books.holder.copy(), books.following.copy(), books.free.copy(), books.shut.copy())
        return Snapshot(*arrays, gangs=dict(self._gangs))

    def restore(self, snapshot: Snapshot) -> None:
        """Back to an earlier state of this ledger; views stay valid."""
        for name in ("holder", "following", "free", "shut"):
            getattr(self.books, name)[:] = getattr(snapshot, name)
        self._gangs = dict(snapshot.gangs)

    def audit(self) -> None:
        """Recounts everything from the holders; raises LedgerError where a count has gone astray."""
        held = {job: set(self.devices_of(job).tolist()) for job in self._gangs}
        for job, devices in held.items():
            if devices != set(np.flatnonzero(self.books.holder == job).tolist()):
                raise LedgerError(f"job {job} and its devices disagree")
        if sum(map(len, held.values())) != int((self.books.holder != NOBODY).sum()):
            raise LedgerError("a device is held by a job that the ledger does not know")
        if not np.array_equal(_count_free(self.books, self._starts[-1]), self.books.free):
            raise LedgerError("the free counts differ from a recount")

    def _take(self, job: int, devices: NDArray[np.int64], *, even_shut: bool) -> None:
        if job < 0:
            raise LedgerError(f"job {job} is not a job number")
        if job in self._gangs:
            raise LedgerError(f"job {job} holds devices already")
        reason, index = kernels.take(self.books, job, devices, even_shut)
        if reason != TAKEN:
            raise LedgerError(self._complaint(reason, int(devices[index])))
        self._gangs[job] = (int(devices[0]), len(devices))

    def _complaint(self, reason: int, device: int) -> str:
        if reason == kernels.OUT_OF_RANGE:
            return _COMPLAINTS[reason].format(device=device)
        machine = self.cluster.machines[self.books.device_machine[device]].name
        return _COMPLAINTS[reason].format(device=device, holder=self.books.holder[device], machine=machine)

    def _set_shut(self, machine: int, state: int) -> None:
        if not 0 <= machine < len(self.cluster.machines):
            raise LedgerError(f"there is no machine {machine}")
        kernels.set_shut(self.books, machine, state)

    def _devices_in(self, machine: int) -> slice:
        return slice(self.books.first_device[machine], self.books.first_device[machine + 1])


def _open_books(cluster: Cluster) -> tuple[Books, NDArray[np.int64]]:
    """Books in which everything is free, and where each level starts among the columns of `free`."""
    starts = np.cumsum([0, *(len(names) for names in cluster.group_names)])
    count, columns = cluster.devices, int(starts[-1])
    books = Books(
        holder=np.full(count, NOBODY, dtype=np.int64),
        following=np.full(count, NOBODY, dtype=np.int32),
        free=np.zeros((len(cluster.device_types) + 1, columns), dtype=np.int32),
        shut=np.zeros(len(cluster.machines), dtype=np.int8),
        device_machine=cluster.device_machine,
        device_type=cluster.device_type,
        first_device=np.concatenate(([0], np.cumsum(cluster.sizes))).astype(np.int32),
        column=(cluster.groups + starts[:-1, None]).astype(np.int32),
    )
    books.free[:] = _count_free(books, columns)
    return books, starts


def _count_free(books: Books, columns: int) -> IntArray:
    """The free counts, from nothing but the holders and the shut machines."""
    is_free = (books.holder == NOBODY) & (books.shut[books.device_machine] == OPEN)
    machine, kind = books.device_machine[is_free], books.device_type[is_free].astype(np.int64)
    rows = books.free.shape[0]
    counts = np.zeros((rows, columns), dtype=np.int32)
    for row in books.column:
        cells = (kind + 1) * columns + row[machine]
        counts += np.bincount(cells, minlength=rows * columns).reshape(rows, columns).astype(np.int32)
    counts[0] = counts[1:].sum(axis=0)
    return counts


def _device_ids(devices: Devices) -> NDArray[np.int64]:
    ids = np.asarray(devices)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise LedgerError("a gang is a list of at least one device number")
    return np.ascontiguousarray(ids, dtype=np.int64)


def _read_only(array: NDArray[ScalarT]) -> NDArray[ScalarT]:
    view = array.view()
    view.flags.writeable = False
    return view
