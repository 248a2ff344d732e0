"""Writes berth's plain CSV; reading it gives the same trace, bit by bit.

Whole numbers are written without a decimal point, others with the fewest digits that read back the same.
Optional columns without a value are left out. The write is atomic.
"""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import polars as pl

from berth.errors import TraceError
from berth.workload.trace import OPTIONAL, SCHEMA

_ROWS_AT_ONCE = 100_000
_EXACT = 2.0**53  # up to here a float holds every whole number
SUFFIXES = (".csv", ".csv.gz", ".csv.xz", ".csv.zst")


def write_csv(frame: pl.DataFrame, path: str | Path) -> None:
    """Write the columns of a trace; the suffix selects the compression."""
    path = Path(path)
    if not path.name.endswith(SUFFIXES):
        raise TraceError(
            f"can't choose a format for {path.name!r}",
            where=str(path),
            hint=f"end the name in {', '.join(SUFFIXES)}",
        )
    columns = [name for name in SCHEMA if name not in OPTIONAL or frame[name].null_count() < len(frame)]
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _compressed(fresh, path.suffix) as stream:
            stream.write((",".join(columns) + "\n").encode())
            for part in frame.select(columns).iter_slices(_ROWS_AT_ONCE):
                part.select(_as_text(name) for name in columns).write_csv(
                    stream, include_header=False, quote_style="never"
                )
        os.replace(fresh, path)
    except OSError as error:
        raise TraceError(f"can't be written: {error.strerror or error}", where=str(path)) from None
    finally:
        with suppress(OSError):  # where nothing could be written there is nothing to remove
            fresh.unlink()


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
