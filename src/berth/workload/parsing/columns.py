"""Parses text columns into numbers and dates, one block at a time; failures become bad rows.

A bad row is counted once, for its first failure. Values of bad rows are meaningless; `good` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from berth.arrays import BoolArray, FloatArray, Int64Array
from berth.workload.parsing.csv_rows import Block
from berth.workload.shapes import LONGEST_S
from berth.workload.trace import BadRow, BadRowCollector

MAX_GPUS = float(2**31 - 1)
_FIRST_DATE_S, _LAST_DATE_S = 0.0, 4_102_444_800.0  # the years 1970 to 2099


class Columns:
    """The columns of one block, asked for by name; a column that the file does not have is all null."""

    def __init__(self, block: Block, bad_rows: BadRowCollector) -> None:
        self._block = block
        self._faults = bad_rows
        self.ok: BoolArray = np.ones(len(block.lines), dtype=bool)
        self.lines = block.lines

    def text(self, name: str) -> pl.Series:
        """Text, null where the field is empty."""
        if name in self._block.cells.columns:
            return self._block.cells[name]
        return pl.Series(name, [None], dtype=pl.String).extend_constant(None, len(self.lines) - 1)

    def name(self, name: str) -> pl.Series:
        """Text that is required."""
        texts = self.text(name)
        self.reject(texts.is_null().to_numpy(), name, "is missing")
        return texts

    def number(self, name: str, *, optional: bool = False) -> FloatArray:
        """Finite numbers; NaN where an optional one is empty."""
        texts = self.text(name)
        numbers = texts.cast(pl.Float64, strict=False)
        if numbers.null_count() > texts.null_count():
            numbers = texts.str.strip_chars().cast(pl.Float64, strict=False)
        missing = texts.is_null().to_numpy()
        if not optional:
            self.reject(missing, name, "is missing")
        self.reject(numbers.is_null().to_numpy() & ~missing, name, "is not a number")
        values = numbers.fill_null(np.nan).to_numpy()
        self.reject(~np.isfinite(values) & ~missing, name, "is not a finite number")
        return values

    def moment(self, name: str) -> FloatArray:
        """A point of time in seconds from any zero."""
        values = self.number(name)
        self.reject(np.abs(values) > LONGEST_S, name, "is implausibly large")
        return values

    def time(self, name: str, *, longest: float = LONGEST_S) -> FloatArray:
        """A point of time in seconds (or whatever the format counts in) that is not negative."""
        values = self.number(name)
        self.reject(values < 0, name, "is negative")
        self.reject(values > longest, name, "is implausibly large")
        return values

    def duration(self, name: str, *, longest: float = LONGEST_S) -> FloatArray:
        """A time span above zero."""
        values = self.number(name)
        self.reject_durations(values, name, longest=longest)
        return values

    def reject_durations(self, values: FloatArray, name: str, *, longest: float = LONGEST_S) -> None:
        """Reject time spans that are not above zero, or implausibly long."""
        self.reject(values <= 0, name, "is not above zero")
        self.reject(values > longest, name, "is implausibly large")

    def gpus(self, name: str) -> FloatArray:
        """How many GPUs: a whole number, and at least one."""
        values = self.whole(name)
        self.reject(values < 0, name, "is negative")
        self.reject(values == 0, name, "asks for no GPU")
        return values

    def whole(self, name: str, *, optional: bool = False) -> FloatArray:
        """Whole numbers that fit 32 bits."""
        values = self.number(name, optional=optional)
        self.reject((values != np.floor(values)) & ~np.isnan(values), name, "is not a whole number")
        self.reject(np.abs(values) > MAX_GPUS, name, "is implausibly large")
        return values

    def estimate(self, name: str) -> FloatArray:
        """A time span above zero, or none."""
        values = self.number(name, optional=True)
        self.reject_durations(values, name)
        return values

    def flag(self, name: str) -> FloatArray:
        """0, 1 or nothing."""
        values = self.number(name, optional=True)
        self.reject((values != 0) & (values != 1) & ~np.isnan(values), name, "is neither 0 nor 1")
        return values

    def date(self, name: str) -> FloatArray:
        """Wall-clock times such as `2017-10-09 07:01:55`, in seconds since 1970."""
        texts = self.name(name)
        stamps = texts.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us")
        missing = texts.is_null().to_numpy()
        self.reject(stamps.is_null().to_numpy() & ~missing, name, "is not a date")
        seconds = (stamps.dt.timestamp("us").cast(pl.Float64) / 1e6).fill_null(np.nan).to_numpy()
        self.reject(
            (seconds < _FIRST_DATE_S) | (seconds >= _LAST_DATE_S), name, "is not between 1970 and 2099"
        )
        return seconds

    def reject(self, mask: BoolArray, field: str, reason: str) -> None:
        """Record the rows under the mask as bad, except those that already are."""
        fresh = mask & self.ok
        picked = np.flatnonzero(fresh)
        if len(picked):
            self._faults.add(len(picked), self._bad_rows(picked, field, reason))
            self.ok &= ~fresh

    def _bad_rows(self, picked: Int64Array, field: str, reason: str) -> Iterator[BadRow]:
        texts = self.text(field)
        for row in picked.tolist():
            line, column = self._block.locate(row, field)
            yield BadRow(line, column, field, texts[row] or "", reason)

    def good(self, **columns: pl.Series | FloatArray | None) -> pl.DataFrame:
        """The given columns without the bad rows, and the line of each row."""
        given = {name: values for name, values in columns.items() if values is not None}
        return pl.DataFrame({**given, "line": self.lines}).filter(pl.Series(self.ok))
