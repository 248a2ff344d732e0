"""A trace: submission time, GPUs and duration of each job, as columns.

Times are seconds from the first submission. `duration_s` is the run time at the nearest placement, on the device
named in `device` (or on the reference device of the simulation); the network model adds the cost of wider
placements. `estimate_s` is what the user expected it to be, `preemptible` 0 for a job that can't be evicted or moved.
Rows are in order of submission. `bad` lists rows that could not be used, `notes` what was changed (sorted rows,
shifted times).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from berth.arrays import BoolArray, FloatArray, IntArray
from berth.errors import TraceError
from berth.workload.shapes import Offer

SCHEMA: dict[str, pl.DataType] = {
    "job_id": pl.String(),
    "submit_s": pl.Float64(),
    "num_gpu": pl.Int32(),
    "duration_s": pl.Float64(),
    "model": pl.String(),
    "user": pl.String(),
    "vc": pl.String(),
    "priority": pl.Int32(),
    "device": pl.String(),
    "name": pl.String(),
    "estimate_s": pl.Float64(),
    "preemptible": pl.Int32(),
}
NEEDED = ("job_id", "submit_s", "num_gpu", "duration_s")
OPTIONAL = ("model", "user", "vc", "priority", "device", "name", "estimate_s", "preemptible")
_SHOWN = 10  # bad rows


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is not a valid job: its position and the reason."""

    line: int
    column: int | None  # of the character where the offending field begins; None: the row as a whole
    field: str
    value: str
    reason: str

    def place(self, source: str) -> str:
        """`file:line:column`."""
        return f"{source}:{self.line}" + (f":{self.column}" if self.column else "")

    def __str__(self) -> str:
        if not self.field:
            return self.reason
        shown = self.value if len(self.value) <= 40 else f"{self.value[:37]}..."
        return f"{self.field} {shown!r}: {self.reason}" if shown else f"{self.field}: {self.reason}"


@dataclass(frozen=True, slots=True)
class BadRows:
    """All rows that did not become jobs: how many by cause, and the first of them."""

    counts: Mapping[str, int] = field(default_factory=dict)
    first: tuple[BadRow, ...] = ()

    @property
    def total(self) -> int:
        """Bad rows of all causes; each row is counted once, for the first fault found in it."""
        return sum(self.counts.values())


class BadRowCollector:
    """Collects bad rows while a trace is read."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: list[BadRow] = []

    def add(self, count: int, rows: Iterable[BadRow]) -> None:
        """Add `count` rows of one cause; only the first of `rows` (in order of lines) are used."""
        if not count:
            return
        shown = list(islice(rows, _SHOWN))
        cause = f"{shown[0].field}: {shown[0].reason}" if shown[0].field else shown[0].reason
        self._counts[cause] = self._counts.get(cause, 0) + count
        self._first = sorted([*self._first, *shown], key=lambda row: row.line)[:_SHOWN]

    def summary(self) -> BadRows:
        """Return the counts, most frequent cause first."""
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return BadRows(dict(ranked), tuple(self._first))


@dataclass(frozen=True, eq=False)
class Trace:
    """The jobs of a trace, one row each, in order of submission."""

    frame: pl.DataFrame = field(repr=False)  # the columns of SCHEMA
    source: str
    format: str = "berth"
    origin: datetime | None = None  # the wall clock at submit_s = 0, in the time zone of the source
    rows: int = 0  # rows of the source, bad ones included
    bad: BadRows = field(default_factory=BadRows)
    notes: tuple[str, ...] = ()
    # jobs with parts and alternatives, by id; their `num_gpu` and `duration_s` are those of the first alternative
    offers: Mapping[str, Offer] = field(default_factory=dict, repr=False)
    # of each model and device that is named, by column and name: the line of the first row that names it
    first_lines: Mapping[tuple[str, str], int] = field(default_factory=dict, repr=False)

    @staticmethod
    def from_columns(
        columns: Mapping[str, Sequence[object] | NDArray[np.generic] | pl.Series],
        *,
        source: str,
        format: str = "berth",  # noqa: A002
        origin: datetime | None = None,
        notes: Sequence[str] = (),
        offers: Mapping[str, Offer] | None = None,
    ) -> Trace:
        """Return a trace from columns: checked, sorted, times from 0."""
        frame = _with_schema(pl.DataFrame(dict(columns)), source)
        _check(frame, source)
        frame = frame.sort("submit_s", maintain_order=True)
        first_s = frame["submit_s"][0]
        frame = frame.with_columns(pl.col("submit_s") - first_s)
        if origin is not None:
            origin += timedelta(seconds=first_s)
        return Trace(frame, source, format, origin, rows=len(frame), notes=tuple(notes), offers=offers or {})

    def __len__(self) -> int:
        return self.frame.height

    @cached_property
    def submit_s(self) -> FloatArray:
        """Submission of each job, in seconds from the first."""
        return self.frame["submit_s"].to_numpy()

    @cached_property
    def num_gpu(self) -> IntArray:
        """GPUs that each job requests."""
        return self.frame["num_gpu"].to_numpy()

    @cached_property
    def duration_s(self) -> FloatArray:
        """Run time of each job at its nearest placement."""
        return self.frame["duration_s"].to_numpy()

    @cached_property
    def job_ids(self) -> list[str]:
        """Ids of the jobs."""
        return self.frame["job_id"].to_list()

    @property
    def span_s(self) -> float:
        """From the first submission to the last."""
        return float(self.submit_s[-1]) if len(self) else 0.0

    @property
    def gpu_seconds(self) -> float:
        """Total demand: GPUs times run time."""
        return math.fsum((self.num_gpu * self.duration_s).tolist())

    def place_of(self, column: str, name: str) -> str:
        """`file:line` of the first row with this model or device; without lines `file, column`."""
        line = self.first_lines.get((column, name))
        return f"{self.source}, column `{column}`" if line is None else f"{self.source}:{line}"

    def keep(self, mask: BoolArray, note: str) -> Trace:
        """Return the jobs under the mask, with times from the first of them."""
        frame = self.frame.filter(pl.Series(mask))
        if frame.is_empty():
            raise TraceError(f"no job is left: {note}", where=self.source, hint="widen the selection")
        first_s = float(frame["submit_s"][0])
        origin = self.origin + timedelta(seconds=first_s) if self.origin else None
        frame = frame.with_columns(pl.col("submit_s") - first_s)
        kept = {job: self.offers[job] for job in frame["job_id"] if job in self.offers} if self.offers else {}
        return replace(self, frame=frame, origin=origin, notes=(*self.notes, note), offers=kept)

    def write_csv(self, path: str | Path) -> None:
        """Write berth's plain CSV; `.gz`, `.xz` or `.zst` at the end of the name compress it."""
        from berth.workload.writing import write_csv

        if self.offers:
            raise TraceError(
                f"{len(self.offers):,} jobs have alternatives, which CSV can't hold",
                where=str(path),
                hint="end the name in .jsonl, or in .jsonl.gz",
            )
        write_csv(self.frame, path)

    def write(self, path: str | Path) -> None:
        """Write CSV, or JSON lines where the name ends in `.jsonl`; both may be compressed."""
        from berth.workload.writing import JSONL_SUFFIXES, check_suffix, write_jsonl

        if not self.offers:  # with them, the error of `write_csv` says more
            check_suffix(path)
        if Path(path).name.endswith(JSONL_SUFFIXES):
            write_jsonl(self, path)
        else:
            self.write_csv(path)


def _with_schema(frame: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the columns of SCHEMA in its order and types; empty text becomes null."""
    missing = [name for name in NEEDED if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in SCHEMA]
    if missing or unknown:
        what = f"has no column {missing[0]!r}" if missing else f"has an unknown column {unknown[0]!r}"
        raise TraceError(what, where=source, hint=f"a trace has the columns {', '.join(SCHEMA)}")
    absent = [pl.lit(None).alias(name) for name in OPTIONAL if name not in frame.columns]
    frame = frame.with_columns(absent)
    frame = frame.select(_as_type(frame[name], kind, source) for name, kind in SCHEMA.items())
    texts = [name for name, kind in SCHEMA.items() if kind == pl.String()]
    return frame.with_columns(pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in texts)


def _as_type(column: pl.Series, kind: pl.DataType, source: str) -> pl.Series:
    """Return a column in the type of the schema."""
    try:
        made = column.cast(kind)
    except pl.exceptions.PolarsError:
        made = None
    if made is None or (column.dtype.is_float() and kind.is_integer() and (made != column).any()):
        what = "whole numbers of 32 bits" if kind.is_integer() else "numbers" if kind.is_numeric() else "text"
        raise TraceError(f"column {column.name!r} must hold {what}", where=source)
    return made


def _check(frame: pl.DataFrame, source: str) -> None:
    """Raise a TraceError if the columns are not a valid trace."""
    faults = {
        "no jobs": frame.is_empty(),
        "a job without job_id, submit_s, num_gpu or duration_s": any(
            frame[name].null_count() for name in NEEDED
        ),
        "two jobs of one name": frame["job_id"].n_unique() < len(frame),
        "a submission that is not a finite number": not frame["submit_s"].is_finite().all(),
        "a job of no GPU": not (frame["num_gpu"] > 0).all(),
        "a duration that is not above zero": not (
            frame["duration_s"].is_finite().all() and (frame["duration_s"] > 0).all()
        ),
        "an estimate that is not above zero": not (frame["estimate_s"].drop_nulls() > 0).all(),
        "a preemptible that is neither 0 nor 1": not frame["preemptible"].drop_nulls().is_in([0, 1]).all(),
    }
    for what, broken in faults.items():
        if broken:
            raise TraceError(f"holds {what}", where=source)
