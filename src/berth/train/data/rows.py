"""Rows of click logs as arrays, independent of the file format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SLOT_SHIFT = 56  # key = (slot + 1) << 56 | (id + 1); 0 in the low bits: missing


@dataclass(frozen=True, slots=True)
class BadRow:
    """An unreadable row."""

    row: int  # 1-based line of a text file, or row of a Parquet file
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Valid rows in file order, and the unreadable ones between them."""

    keys: Ints  # [row, slot]
    dense: Floats  # [row, feature]
    labels: Ints
    ends: Ints  # start of the next row: byte of a text file, row of a Parquet file
    lines: Ints  # lines (rows) of the file up to there
    bad: list[BadRow]
    columns: tuple[tuple[str, ...], tuple[str, ...]]  # names of slots and features
    read: int = 0  # lines of the file, valid and unreadable

    def __len__(self) -> int:
        return len(self.labels)


def slot_bases(slots: int) -> Ints:
    """Return the offset of each slot's keys, so that keys of different slots differ."""
    return (np.arange(slots, dtype=np.int64) + 1) << SLOT_SHIFT
