"""Reads a trace: any format, plain or compressed, as columns in order of submission.

    bytes -> text columns, block by block -> checked numbers (all in parsing/) -> jobs (formats/) -> Trace

Rows that are not valid jobs are counted and reported; with `strict` they are an error.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from berth.errors import TraceError
from berth.workload.formats import Head, ParsedJobs, detect, named
from berth.workload.parsing.stream import Progress, open_stream
from berth.workload.shapes import Offer
from berth.workload.trace import SCHEMA, BadRow, BadRowCollector, BadRows, Trace

__all__ = ["Progress", "read_trace"]


def read_trace(
    path: str | Path,
    strict: bool = False,
    format: str | None = None,  # noqa: A002
    progress: Progress | None = None,
) -> Trace:
    """Read a trace of any known format; `-` is standard input.

    Bad rows are left out and listed in `bad`; with `strict` they are an error. `progress` is called from time to
    time with the bytes read and, if known, the total.
    """
    bad_rows = BadRowCollector()
    with open_stream(path, progress) as source:
        head = Head.of(source)
        kind = named(format) if format else detect(head, source.name)
        parsed = kind.read(source, head, bad_rows)
        name = source.name
    frame = _without_duplicates(parsed.frame, bad_rows)
    bad = bad_rows.summary()
    if (strict and bad.total) or frame.is_empty():
        raise _refusal(name, parsed.rows, bad)
    frame = _in_order(frame, parsed.notes)
    first_s = float(frame["submit_s"][0])
    if first_s and not parsed.wall_clock:
        parsed.notes.append(f"the first submission was at {first_s:.15g} s: times are counted from there")
    first_lines = _first_lines(frame)
    frame = _columns(frame.with_columns(pl.col("submit_s") - first_s))
    origin = datetime.fromtimestamp(first_s, UTC).replace(tzinfo=None) if parsed.wall_clock else None
    return Trace(
        frame,
        name,
        kind.name,
        origin,
        parsed.rows,
        bad,
        tuple(parsed.notes),
        offers=_offers(frame, parsed),
        first_lines=first_lines,
    )


def _first_lines(frame: pl.DataFrame) -> dict[tuple[str, str], int]:
    """The first line of each model and device, for messages about it."""
    return {
        (column, name): line
        for column in ("model", "device")
        if column in frame.columns
        for name, line in frame.drop_nulls(column).group_by(column).agg(pl.col("line").min()).iter_rows()
    }


def _offers(frame: pl.DataFrame, parsed: ParsedJobs) -> dict[str, Offer]:
    """The offers of the jobs that were kept."""
    if not parsed.offers:
        return {}
    return {job: parsed.offers[job] for job in frame["job_id"] if job in parsed.offers}


def _without_duplicates(frame: pl.DataFrame, bad_rows: BadRowCollector) -> pl.DataFrame:
    """Drop jobs whose id occurred before and record them as bad rows."""
    if frame.is_empty() or frame["job_id"].n_unique() == len(frame):
        return frame
    first = frame["job_id"].is_first_distinct()
    duplicates = frame.filter(~first)
    rows = (
        BadRow(line, None, "job_id", job_id, "was used before")
        for line, job_id in duplicates.sort("line").select("line", "job_id").iter_rows()
    )
    bad_rows.add(len(duplicates), rows)
    return frame.filter(first)


def _in_order(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    steps = np.diff(frame["submit_s"].to_numpy())
    back = int((steps < 0).sum())
    if not back:
        return frame
    notes.append(f"the rows were not in order of time ({back:,} came before the one above): sorted")
    return frame.sort("submit_s", maintain_order=True)


def _columns(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns of a trace in their types; those a format does not have are null."""
    frame = frame.with_columns(pl.lit(None).alias(name) for name in SCHEMA if name not in frame.columns)
    # NaN stands for an empty field as long as the column is read as floats.
    numbers = pl.col("priority", "estimate_s", "preemptible")
    frame = frame.with_columns(numbers.cast(pl.Float64).fill_nan(None))
    return frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _refusal(source: str, rows: int, bad: BadRows) -> TraceError:
    """One error for all bad rows: the first with its position, then the count of each cause."""
    first = bad.first[0]
    causes = [f"{count:,} x {cause}" for cause, count in bad.counts.items()]
    what = f"{first}\n{bad.total:,} of {rows:,} rows can't be used:\n  " + "\n  ".join(causes)
    hint = "no row is left" if bad.total == rows else "without --strict they are left out and the others read"
    return TraceError(what, where=first.place(source), hint=hint)
