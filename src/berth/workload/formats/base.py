"""Trace formats: how a format is recognised, and how its rows become jobs.

A CSV format is two functions: `parse` turns a block of checked columns into jobs, `finish` sees all of
them together (to find out units, or to join rows into jobs). Other formats implement `read`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from berth.errors import TraceError, nearest
from berth.units import format_count
from berth.workload.parsing.columns import Columns
from berth.workload.parsing.csv_rows import CsvRows
from berth.workload.parsing.stream import TraceStream
from berth.workload.shapes import Offer
from berth.workload.trace import BadRowCollector


@dataclass(frozen=True)
class Head:
    """The beginning of a file, for format detection."""

    text: str
    fields: tuple[str, ...]  # of the first line that is not blank

    @staticmethod
    def of(source: TraceStream) -> Head:
        """The head of an opened trace."""
        text = source.head.decode(errors="replace").lstrip()
        try:
            fields = next(csv.reader([text.split("\n", 1)[0]]), [])
        except csv.Error:
            fields = []
        return Head(text, tuple(name.strip() for name in fields))


@dataclass
class ParsedJobs:
    """Jobs as parsed: not sorted yet, and times not relative to the first submission yet."""

    frame: pl.DataFrame
    rows: int
    wall_clock: bool = False  # submit_s counts from 1970
    notes: list[str] = field(default_factory=list)
    offers: dict[str, Offer] = field(default_factory=dict)  # of jobs with alternatives, by id


class Format(Protocol):
    """One format of traces."""

    @property
    def name(self) -> str:
        """As `--format` takes it."""

    @property
    def title(self) -> str:
        """What people call it."""

    def recognises(self, head: Head) -> bool:
        """Whether a file with this beginning has this format."""

    def read(self, source: TraceStream, head: Head, bad_rows: BadRowCollector) -> ParsedJobs:
        """Return all jobs of the file; other rows are added to `bad_rows`."""


def _unchanged(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    return frame


@dataclass(frozen=True)
class CsvFormat:
    """A CSV with named columns."""

    name: str
    title: str
    needs: tuple[str, ...]
    parse: Callable[[Columns], pl.DataFrame]
    finish: Callable[[pl.DataFrame, list[str]], pl.DataFrame] = _unchanged
    wall_clock: bool = False
    all_columns: tuple[str, ...] | None = None  # other columns are listed in a note
    bare: Callable[[Head], tuple[str, ...] | None] = lambda head: None  # names of a file without a header

    def recognises(self, head: Head) -> bool:
        """Whether the header matches, or the first row of a file without header."""
        return set(self.needs) <= set(head.fields) or self.bare(head) is not None

    def read(self, source: TraceStream, head: Head, bad_rows: BadRowCollector) -> ParsedJobs:
        """Read all rows, block by block: the text of a large file is never in memory at once."""
        bare = self.bare(head)
        names = bare or head.fields
        self._check_header(names, source.name)
        rows = CsvRows(source.name, names, header=bare is None, bad_rows=bad_rows)
        parts = [self.parse(Columns(block, bad_rows)) for block in rows.blocks(source.pieces())]
        notes = self._notes(names, rows.blank_lines)
        if not rows.rows:
            raise TraceError(
                "has a header and no rows", where=source.name, hint="a trace has one row per job"
            )
        frame = pl.concat(parts, how="diagonal_relaxed") if parts else pl.DataFrame()
        return ParsedJobs(
            self.finish(frame, notes) if len(frame) else frame, rows.rows, self.wall_clock, notes
        )

    def _check_header(self, names: tuple[str, ...], where: str) -> None:
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise TraceError(f"has two columns {twice[0]!r}", where=f"{where}:1")
        for name in self.needs:
            if name not in names:
                near = nearest(name, names)
                hint = f"is {near!r} meant?" if near else f"its columns: {', '.join(names)}"
                raise TraceError(
                    f"has no column {name!r}, as {self.title} has", where=f"{where}:1", hint=hint
                )

    def _notes(self, names: tuple[str, ...], blank_lines: int) -> list[str]:
        notes = []
        unknown = [name for name in names if name not in self.all_columns] if self.all_columns else []
        if unknown:
            plural = "s" if len(unknown) > 1 else ""
            notes.append(f"column{plural} berth does not use: {', '.join(unknown)}")
        if blank_lines:
            notes.append(f"{format_count(blank_lines, 'blank line')} skipped")
        return notes
