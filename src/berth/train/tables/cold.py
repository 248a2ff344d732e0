"""Cold records in one scratch file: written in blocks, never changed in place, verified on every read.

Evicted records are collected and written many blocks at a time; a record that is loaded again leaves a dead one
behind. Blocks without live records are reused, and `sparse` returns those worth compacting. The checksum of every
block is kept in memory, so a block that was altered, torn or never written is detected. Checkpoints use `state.py`
instead.
"""

from __future__ import annotations

import os
import tempfile
import weakref
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.train.tables.hashing import Keys
from berth.train.tables.initialise import Floats

Positions = NDArray[np.int64]
Marks = NDArray[np.uint8]

BLOCK_BYTES = 4096
MAX_POSITIONS = 2**31 - 2  # the index stores a cold position as a negative 32-bit number
_PENDING = 256  # blocks written together
_READ_TOGETHER = 512  # records; their blocks fit the CPU caches
_NOT_PENDING = -1


def cold_memory(width: int, records: int) -> int:
    """Return the most memory that cold records take: half of a file may be dead, and columns grow by a quarter."""
    each = max(1, BLOCK_BYTES // (8 + 4 * width))
    blocks = max(_PENDING, 2 * -(-records // each) + _PENDING) * 5 // 4
    return blocks * (12 + each) + _PENDING * each * 2 * (8 + 4 * width)


class ColdFile:
    """Records of `width` floats and their keys, by position."""

    def __init__(self, folder: str | Path, width: int) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.per_block = max(1, BLOCK_BYTES // (8 + 4 * width))
        self.block = np.dtype(
            [("keys", np.int64, self.per_block), ("rows", np.float32, (self.per_block, width))]
        )
        self._file, name = tempfile.mkstemp(".rows", "cold-", folder)
        self.path = Path(name)
        self._close = weakref.finalize(self, _discard, self._file, name)
        self._blocks = 0  # in the file
        self._sums = np.zeros(_PENDING, np.uint32)
        self._living = np.zeros(_PENDING, np.int32)
        self._pending_at = np.full(_PENDING, _NOT_PENDING, np.int32)
        self._changed = np.zeros(_PENDING * self.per_block, np.uint8)
        self._free: list[int] = []
        self._pending = np.zeros(_PENDING, self.block)
        self._keys = np.zeros(_PENDING * self.per_block, np.int64)
        self._rows = np.zeros((_PENDING * self.per_block, width), np.float32)
        self._numbers = np.zeros(_PENDING, np.int64)
        self.count = 0
        self._start_pending()

    @property
    def memory_bytes(self) -> int:
        """Return the memory of checksums, counts and pending blocks."""
        columns = (
            self._sums,
            self._living,
            self._pending_at,
            self._changed,
            self._pending,
            self._keys,
            self._rows,
        )
        return sum(column.nbytes for column in columns)

    @property
    def file_bytes(self) -> int:
        """Return the size of the file."""
        return self._blocks * self.block.itemsize

    def close(self) -> None:
        """Close and delete the file."""
        self._close()

    def append(self, keys: Keys, rows: Floats, changed: Marks) -> Positions:
        """Add records; returns their positions."""
        positions = np.empty(len(keys), np.int64)
        start = 0
        while start < len(keys):
            stop = min(len(keys), start + len(self._keys) - self._filled)
            here = np.arange(self._filled, self._filled + stop - start)
            self._keys[here], self._rows[here] = keys[start:stop], rows[start:stop]
            positions[start:stop] = (
                self._numbers[here // self.per_block] * self.per_block + here % self.per_block
            )
            self._changed[positions[start:stop]] = changed[start:stop]
            self._count(positions[start:stop], 1)
            self._filled += stop - start
            start = stop
            if self._filled == len(self._keys):
                self.flush()
        return positions

    def read(self, positions: Positions) -> tuple[Floats, Marks]:
        """Return records, and whether they changed since the last save."""
        blocks = positions // self.per_block
        order = np.argsort(blocks, kind="stable")
        rows = np.empty((len(positions), self._rows.shape[1]), np.float32)
        for start in range(0, len(order), _READ_TOGETHER):
            some = order[start : start + _READ_TOGETHER]
            needed, which = np.unique(blocks[some], return_inverse=True)
            rows[some] = self._contents(needed)["rows"][which, positions[some] % self.per_block]
        return rows, self._changed[positions]

    def drop(self, positions: Positions) -> None:
        """Delete records."""
        self._count(positions, -1)
        blocks = np.unique(positions // self.per_block)
        dead = (self._living[blocks] == 0) & (self._pending_at[blocks] == _NOT_PENDING)
        self._free.extend(blocks[dead].tolist())

    def clear_changed(self) -> None:
        """Mark all records as saved."""
        self._changed[:] = 0

    def sparse(self) -> NDArray[np.int64]:
        """Return blocks that are more than half dead, the emptiest first, if the file is mostly dead."""
        used = self._blocks - len(self._free)
        if used < 2 * _PENDING or used * self.per_block < 2 * self.count:
            return np.empty(0, np.int64)
        living = self._living[: self._blocks]
        poor = np.flatnonzero(
            (living > 0)
            & (living <= self.per_block // 2)
            & (self._pending_at[: self._blocks] == _NOT_PENDING)
        )
        return poor[np.argsort(living[poor], kind="stable")[:_PENDING]]

    def candidates(self, blocks: NDArray[np.int64]) -> tuple[Keys, Positions]:
        """Return the keys in blocks, live or dead, and their positions."""
        positions = blocks[:, None] * self.per_block + np.arange(self.per_block)
        return self._contents(blocks)["keys"].reshape(-1), positions.reshape(-1)

    def flush(self) -> None:
        """Write the pending blocks."""
        if len(self._free) < _PENDING and (self._blocks + _PENDING) * self.per_block > MAX_POSITIONS:
            raise InputError(
                f"the file of cold rows is full ({MAX_POSITIONS} records)",
                where=str(self.path),
                hint="use more servers, or more memory",
            )
        self._pending["keys"] = self._keys.reshape(_PENDING, -1)
        self._pending["rows"] = self._rows.reshape(_PENDING, self.per_block, -1)
        raw = self._pending.view(np.uint8).reshape(_PENDING, -1)
        self._sums[self._numbers] = [zlib.crc32(block.data) for block in raw]
        for first, last in _runs(self._numbers):
            _write(self._file, raw[first:last], int(self._numbers[first]) * self.block.itemsize, self.path)
        self._pending_at[self._numbers] = _NOT_PENDING
        dead = self._numbers[self._living[self._numbers] == 0]
        self._free.extend(dead.tolist())
        self._start_pending()

    def _start_pending(self) -> None:
        reused = [self._free.pop() for _ in range(min(_PENDING, len(self._free)))]
        more = _PENDING - len(reused)
        self._numbers[:] = sorted(reused) + list(range(self._blocks, self._blocks + more))
        self._blocks += more
        self._widen()
        self._pending_at[self._numbers] = np.arange(_PENDING)
        self._filled = 0

    def _widen(self) -> None:
        room = len(self._sums)
        if self._blocks <= room:
            return
        more = max(self._blocks - room, room // 4)
        self._sums = np.append(self._sums, np.zeros(more, np.uint32))
        self._living = np.append(self._living, np.zeros(more, np.int32))
        self._pending_at = np.append(self._pending_at, np.full(more, _NOT_PENDING, np.int32))
        self._changed = np.append(self._changed, np.zeros(more * self.per_block, np.uint8))

    def _count(self, positions: Positions, step: int) -> None:
        blocks, counts = np.unique(positions // self.per_block, return_counts=True)
        self._living[blocks] += (step * counts).astype(np.int32)
        self.count += step * len(positions)

    def _contents(self, blocks: NDArray[np.int64]) -> NDArray[np.void]:
        """Return blocks, ascending, from the file or from the pending ones."""
        out = np.empty(len(blocks), self.block)
        pending_at = self._pending_at[blocks]
        stored = np.flatnonzero(pending_at == _NOT_PENDING)
        self._read_stored(blocks, stored, out.view(np.uint8))
        waiting = np.flatnonzero(pending_at != _NOT_PENDING)
        out["keys"][waiting] = self._keys.reshape(_PENDING, -1)[pending_at[waiting]]
        out["rows"][waiting] = self._rows.reshape(_PENDING, self.per_block, -1)[pending_at[waiting]]
        return out

    def _read_stored(self, blocks: NDArray[np.int64], stored: NDArray[np.int64], raw: Marks) -> None:
        """Read stored blocks; adjacent ones in one call."""
        size, view = self.block.itemsize, raw.data
        numbers, ats = blocks[stored].tolist(), (stored * size).tolist()
        sums = self._sums[blocks[stored]].tolist()
        for first, last in _runs(blocks[stored]):
            start, stop = ats[first], ats[last - 1] + size
            if os.preadv(self._file, [view[start:stop]], numbers[first] * size) < stop - start:
                view[start:stop] = bytes(stop - start)  # torn file: caught by the checksums
        for number, at, expected in zip(numbers, ats, sums, strict=True):
            if zlib.crc32(view[at : at + size]) != expected:
                raise self._corrupt(number)

    def _corrupt(self, block: int) -> InputError:
        start = block * self.block.itemsize
        return InputError(
            f"block {block} of the cold rows is corrupt (bytes {start} to {start + self.block.itemsize})",
            where=str(self.path),
            hint="its rows are refused; check the disk and resume from the last checkpoint",
        )


def _runs(numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of consecutive numbers in an ascending array."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return list(zip([0, *breaks.tolist()], [*breaks.tolist(), len(numbers)], strict=True))


def _write(file: int, raw: Marks, offset: int, path: Path) -> None:
    view = raw.reshape(-1).data
    while view:
        try:
            written = os.pwrite(file, view, offset)
        except OSError as error:
            raise InputError(
                f"cold rows can't be written: {error.strerror}", where=str(path), hint="free some disk space"
            ) from error
        view, offset = view[written:], offset + written


def _discard(file: int, name: str) -> None:
    os.close(file)
    Path(name).unlink(missing_ok=True)
