"""Rows that were copied to a device: for this step, or ahead of the next one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from berth.train.devices import SideStream
from berth.train.tables.hashing import Keys
from berth.train.tables.index import Index

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows on the device, by the numbers of their keys in the batch."""

    kept: Numbers  # that get a place in the cache
    records: Tensor  # weights and optimiser state of those
    rows: Tensor  # weights of the others
    loose: Numbers  # that are on the device for this step only

    def limited(self, most: int) -> Arrivals:
        """Return them with at most this many to be kept."""
        if len(self.kept) <= most:
            return self
        rows = torch.cat([self.records[most:, : self.rows.shape[1]], self.rows])
        loose = np.concatenate([self.kept[most:], self.loose])
        return Arrivals(self.kept[:most], self.records[:most], rows, loose)

    def joined(self, others: Arrivals) -> Arrivals:
        """Return both; what has no rows costs no operation."""
        if not len(others.kept) + len(others.loose):
            return self
        if not len(self.kept) + len(self.loose):
            return others
        kept, loose = (
            np.concatenate([a, b]) for a, b in ((self.kept, others.kept), (self.loose, others.loose))
        )
        return Arrivals(
            kept, torch.cat([self.records, others.records]), torch.cat([self.rows, others.rows]), loose
        )


def divided(copied: Tensor, kept: int, columns: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return records, [kept, columns], and rows of weights, [n, dim], that were copied together."""
    records, rows = copied.split((kept * columns, len(copied) - kept * columns))
    return records.view(-1, columns), rows.view(-1, dim)


@dataclass(slots=True)
class PrefetchedRows:
    """Rows copied ahead on a side stream, those to be kept first. A push makes the rows of its keys invalid."""

    keys: Keys
    kept: int
    copied: Tensor
    columns: int
    dim: int
    index: Index = field(default_factory=Index)
    valid: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def __post_init__(self) -> None:
        self.index.put(self.keys, np.arange(len(self.keys), dtype=np.int32))
        self.valid = np.ones(len(self.keys), np.bool_)

    def invalidate(self, keys: Keys) -> None:
        """Never use the rows of these keys: they have changed."""
        if self.valid.any():
            numbers = self.index.find(keys)[0]
            self.valid[numbers[numbers >= 0]] = False

    def take(self, keys: Keys, stream: SideStream) -> Arrivals:
        """Return the rows of these keys that are valid, by their numbers among `keys`.

        The current stream waits for the copy.
        """
        numbers = self.index.find(keys)[0]
        of_key = np.full(len(self.keys), -1, np.int64)
        asked = np.flatnonzero(numbers >= 0)
        of_key[numbers[asked]] = asked
        used = self.valid & (of_key >= 0)
        stream.wait(self.copied)
        records, rows = divided(self.copied, self.kept, self.columns, self.dim)
        kept, loose = used[: self.kept], used[self.kept :]
        return Arrivals(
            of_key[: self.kept][kept],
            _selected(records, kept),
            _selected(rows, loose),
            of_key[self.kept :][loose],
        )


def _selected(rows: Tensor, wanted: NDArray[np.bool_]) -> Tensor:
    if wanted.all():
        return rows
    return rows.index_select(0, torch.from_numpy(np.flatnonzero(wanted)).to(rows.device))
