"""Writes a trace as berth's plain CSV or as JSON lines; reading it gives the same trace, bit by bit.

Whole numbers are written without a decimal point, others with the fewest digits that read back the same.
Optional columns without a value are left out. The write is atomic.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import polars as pl

from berth.errors import TraceError
from berth.files import whole_file
from berth.workload.shape_spec import offer_to_dict
from berth.workload.trace import OPTIONAL, SCHEMA, Trace

_ROWS_AT_ONCE = 100_000
_EXACT = 2.0**53  # up to here a float holds every whole number
SUFFIXES = (".csv", ".csv.gz", ".csv.xz", ".csv.zst")
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".jsonl.zst")


def write_csv(frame: pl.DataFrame, path: str | Path) -> None:
    """Write the columns of a trace; the suffix selects the compression."""
    columns = [name for name in SCHEMA if name not in OPTIONAL or frame[name].null_count() < len(frame)]
    with _fresh(Path(path), SUFFIXES) as stream:
        stream.write((",".join(columns) + "\n").encode())
        for part in frame.select(columns).iter_slices(_ROWS_AT_ONCE):
            part.select(_as_text(name) for name in columns).write_csv(
                stream, include_header=False, quote_style="never"
            )


def write_jsonl(trace: Trace, path: str | Path) -> None:
    """Write one JSON object per job, alternatives included."""
    with _fresh(Path(path), JSONL_SUFFIXES) as stream:
        for row in trace.frame.iter_rows(named=True):
            offer = trace.offers.get(row["job_id"])
            left_out = ("num_gpu", "duration_s") if offer is not None else ()
            data = {name: value for name, value in row.items() if value is not None and name not in left_out}
            data |= offer_to_dict(offer) if offer is not None else {}
            stream.write((json.dumps(data, ensure_ascii=False) + "\n").encode())


def check_suffix(path: str | Path, suffixes: tuple[str, ...] = (*SUFFIXES, *JSONL_SUFFIXES)) -> None:
    """Refuse a name that does not say in which format a trace is written."""
    if not Path(path).name.endswith(suffixes):
        raise TraceError(
            f"can't choose a format for {Path(path).name!r}",
            where=str(path),
            hint=f"end the name in {', '.join(suffixes)}",
        )


@contextmanager
def _fresh(path: Path, suffixes: tuple[str, ...]) -> Iterator[IO[bytes]]:
    """A stream into a new file, which replaces `path` once all is written."""
    check_suffix(path, suffixes)
    with whole_file(path) as part, _compressed(part, path.suffix) as stream:
        yield stream


def _as_text(name: str) -> pl.Expr:
    column = pl.col(name)
    if SCHEMA[name] == pl.Float64():
        whole = (column == column.floor()) & (column.abs() < _EXACT)
        return (
            pl.when(whole)
            .then(column.cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(column.cast(pl.String))
        )
    if SCHEMA[name] == pl.String():
        quoted = pl.concat_str(pl.lit('"'), column.str.replace_all('"', '""', literal=True), pl.lit('"'))
        return pl.when(column.str.contains('[,"\r\n]')).then(quoted).otherwise(column).alias(name)
    return column


@contextmanager
def _compressed(path: Path, suffix: str) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if suffix == ".gz":
            # No time stamp and no name inside: the same trace gives the same bytes.
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        elif suffix == ".xz":
            # Preset 6, the usual one, takes ten times as long for a fifth less.
            with lzma.LZMAFile(raw, "wb", preset=1) as packed_xz:
                yield packed_xz
        elif suffix == ".zst":
            import zstandard

            with zstandard.ZstdCompressor(level=6).stream_writer(raw, closefd=False) as packed_zst:
                yield cast(IO[bytes], packed_zst)
        else:
            yield raw
