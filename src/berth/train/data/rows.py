"""Rows of click logs as arrays, independent of the file format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SLOT_SHIFT = 56  # key = (slot + 1) << 56 | (id + 1); 0 in the low bits: missing
_WIDE_SHIFT = 48  # from this many slots on: (slot + 1) << 48
_WIDE_FROM = 254
PADDING = -1  # key after the last id of a list


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list of keys for each row: row r has values[offsets[r] : offsets[r + 1]]."""

    values: Ints
    offsets: Ints

    def part(self, rows: slice) -> Ragged:
        """Return consecutive rows; keys are not copied."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: Ints) -> Ragged:
        """Return rows by index."""
        starts, counts = self.offsets[rows], np.diff(self.offsets)[rows]
        offsets = np.append(0, np.cumsum(counts))
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return Ragged(self.values[places], offsets)

    def padded(self) -> Ints:
        """Return [row, longest list] with `PADDING` after the last key of a row; at least one column."""
        counts = np.diff(self.offsets)
        filled = np.arange(max(int(counts.max(initial=0)), 1)) < counts[:, None]
        out = np.full(filled.shape, PADDING, np.int64)
        out[filled] = self.values
        return out


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples as arrays."""

    keys: Ints  # [row, slot]
    dense: Floats  # [row, feature]
    labels: Ints  # [row], or [row, task] of several labels
    weights: Floats | None = None
    lists: tuple[Ragged, ...] = ()  # of multi-valued slots

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Examples:
        """Return consecutive rows without copying."""
        rows = slice(start, min(stop, len(self)))
        weights = None if self.weights is None else self.weights[rows]
        lists = tuple(one.part(rows) for one in self.lists)
        return Examples(self.keys[rows], self.dense[rows], self.labels[rows], weights, lists)

    def take(self, rows: Ints) -> Examples:
        """Return rows by index; `numpy.take` is twice as fast here as indexing with an array."""
        weights = None if self.weights is None else np.take(self.weights, rows)
        lists = tuple(one.take(rows) for one in self.lists)
        keys, dense = np.take(self.keys, rows, axis=0), np.take(self.dense, rows, axis=0)
        return Examples(keys, dense, np.take(self.labels, rows, axis=0), weights, lists)


def join_examples(parts: Sequence[Examples]) -> Examples:
    """Return all rows in order."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    return Examples(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate(weights) if weights else None,
        tuple(_join_ragged(lists) for lists in zip(*(part.lists for part in parts), strict=True)),
    )


def _join_ragged(parts: Sequence[Ragged]) -> Ragged:
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return Ragged(np.concatenate([part.values for part in parts]), np.append(0, np.cumsum(counts)))


@dataclass(frozen=True, slots=True)
class BadRow:
    """An unreadable row."""

    row: int  # 1-based line of a text file, or row of a Parquet file
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Valid rows in file order, and the unreadable ones between them."""

    examples: Examples
    ends: Ints  # start of the next row: byte of a text file, row of a Parquet file
    lines: Ints  # lines (rows) of the file up to there
    bad: list[BadRow]
    read: int = 0  # lines of the file, valid and unreadable

    def __len__(self) -> int:
        return len(self.examples)


def slot_shift(slots: int) -> int:
    """Return the position of the slot in a key."""
    return SLOT_SHIFT if slots < _WIDE_FROM else _WIDE_SHIFT


def slot_bases(slots: int) -> Ints:
    """Return the offset of each slot's keys, so that keys of different slots differ."""
    return (np.arange(slots, dtype=np.int64) + 1) << slot_shift(slots)


def id_mask(slots: int) -> int:
    """Return the bits of an id that a key holds."""
    return (1 << (slot_shift(slots) - 1)) - 1
