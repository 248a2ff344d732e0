"""Rows of click logs as arrays, whatever file they come from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SLOT_SHIFT = 56  # a key is (slot + 1) and 56 bits of an id + 1; id 0 of a slot means that it is missing


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that could not be read."""

    row: int  # line of a text file, counted from 1, or row of a Parquet file
    why: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Good rows in the order of the file, and the bad ones between them."""

    keys: Ints  # [row, slot]
    dense: Floats  # [row, feature]
    labels: Ints
    ends: Ints  # where the next row begins: bytes of a text file, rows of a Parquet file
    lines: Ints  # how many lines (rows) of the file end there
    bad: list[Bad]
    columns: tuple[tuple[str, ...], tuple[str, ...]]  # names of slots and of features
    read: int = 0  # lines of the file, good and bad

    def __len__(self) -> int:
        return len(self.labels)


def slot_bases(slots: int) -> Ints:
    """What is added to an id of each slot to make a key: keys of different slots are never equal."""
    return (np.arange(slots, dtype=np.int64) + 1) << SLOT_SHIFT
