"""Records of a long trace's jobs only while they are needed: written before a job arrives, released once it has ended.

Compiled code finds a job by its row, so the arrays have a row for every job, in memory that is reserved and not
used. Rows are written in order of arrival; what figures are computed from (`KEPT`) is copied when all jobs of a block
have ended, and its memory is returned to the system. Records take memory for the jobs that wait and run at one time;
columns, kept fields and, with a network, the arrays of flows are there for all jobs.
"""

from __future__ import annotations

import mmap

import numpy as np

from berth.schedule.job_columns import JobColumns
from berth.schedule.records import JOB, Array, JobStatus
from berth.simulate.engine_state import ACCOUNT, start_accounts

KEPT = (
    *("arrival_s", "end_s", "first_start_s", "waited_s", "attained_gpu_s", "updated_s", "work_s"),
    *("gpus", "state", "user", "priority", "evictions", "moves", "preemptible", "shape"),
)
_KEPT_ACCOUNTS = ("exposed_comm_gpu_s", "lost_gpu_s", "redone_s", "usd", "reshapes")
_BLOCK = 64  # jobs
_AHEAD = 4096  # rows are written for this many jobs more than may arrive
_MAP_NORESERVE = 0x4000  # of Linux; mmap names it from Python 3.13 on
_SWEEP = 64  # collections between two that release all that has ended: lists of rows may touch it again


class JobWindow:
    """Job records and accounts of which only those of current jobs take memory."""

    def __init__(self, columns: JobColumns, tiers: int) -> None:
        self._columns, self._count = columns, len(columns)
        self._arrivals = columns["arrival_s"]
        self._memory = _Rows(JOB, self._count), _Rows(ACCOUNT, self._count)
        self.jobs, self.accounts = (rows.array[: self._count] for rows in self._memory)
        kept = [(name, JOB[name]) for name in KEPT]
        self.records = np.zeros(self._count, np.dtype(kept, align=True))
        accounts = [(name, ACCOUNT[name]) for name in _KEPT_ACCOUNTS] + [("tier_gpu_s", ("f8", (tiers,)))]
        self.kept_accounts = np.zeros(self._count, np.dtype(accounts, align=True))
        self._written = self._collections = 0
        self._sure = -1  # all that arrive with this job are written
        self._ended = np.zeros(-(-self._count // _BLOCK), np.bool_)
        self._open = np.zeros(0, np.int64)  # blocks that are written and have not ended

    def write_until(self, arrivals: int) -> None:
        """Writes the records of jobs up to this number, of all that arrive with the last of them, and of the next."""
        if arrivals <= self._sure or self._written == self._count:
            return
        self._sure = arrivals + _AHEAD
        last = self._arrivals[min(self._sure, self._count - 1)]
        stop = int(np.searchsorted(self._arrivals, last, side="right")) + 1
        stop = min(self._count, -(-stop // _BLOCK) * _BLOCK)
        for start in range(self._written, stop, _AHEAD):
            end = min(start + _AHEAD, stop)
            self._columns.write(self.jobs, start, end)
            start_accounts(self.accounts[start:end], self.jobs[start:end])
        blocks = np.arange(self._written // _BLOCK, -(-stop // _BLOCK))
        self._open, self._written = np.concatenate([self._open, blocks]), stop

    def collect(self, arrived: int) -> None:
        """Keeps the results of blocks whose jobs have arrived and ended, and releases their memory."""
        rows = self._open.reshape(-1, 1) * _BLOCK + np.arange(_BLOCK)
        state = self._memory[0].array["state"][rows]
        ended = (state == JobStatus.DONE) | (state == JobStatus.REFUSED)
        ended = (ended & (rows < arrived)) | (rows >= self._count)
        self._end(ended.all(axis=1))
        self._collections += 1
        if self._collections % _SWEEP == 0:
            self._release(np.flatnonzero(self._ended))

    def close(self) -> None:
        """Keeps what is known of all other jobs at the end of a run."""
        self._end(np.ones(len(self._open), np.bool_))
        while self._written < self._count:
            self.write_until(self._written)
            self._end(np.ones(len(self._open), np.bool_))

    def _end(self, which: Array) -> None:
        blocks, self._open = self._open[which], self._open[~which]
        rows = (blocks.reshape(-1, 1) * _BLOCK + np.arange(_BLOCK)).ravel()
        rows = rows[rows < self._count]
        for name in KEPT:
            self.records[name][rows] = self.jobs[name][rows]
        for name in _KEPT_ACCOUNTS:
            self.kept_accounts[name][rows] = self.accounts[name][rows]
        tiers = self.kept_accounts["tier_gpu_s"].shape[1]
        self.kept_accounts["tier_gpu_s"][rows] = self.accounts["tier_gpu_s"][rows, :tiers]
        self._ended[blocks] = True
        self._release(blocks)

    def _release(self, blocks: Array) -> None:
        """Releases ended blocks, given in order; a page that two blocks share once both have ended."""
        if not len(blocks):
            return
        for part in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
            first, stop = int(part[0]), int(part[-1]) + 1
            first -= int(first > 0 and self._ended[first - 1])
            stop += int(stop < len(self._ended) and self._ended[stop])
            for rows in self._memory:
                rows.release(first, stop)


class _Rows:
    """An array in private memory that can be returned to the system in parts; it reads as zeros then."""

    def __init__(self, dtype: np.dtype[np.void], count: int) -> None:
        self._block_bytes = _BLOCK * dtype.itemsize
        rows = -(-count // _BLOCK) * _BLOCK
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, rows * dtype.itemsize, flags=flags)
        self.array: Array = np.frombuffer(self._memory, dtype)

    def release(self, first: int, stop: int) -> None:
        """Releases the pages that lie within blocks first:stop."""
        start = -(-first * self._block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        end = stop * self._block_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)
