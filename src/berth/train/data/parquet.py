"""Click logs in Parquet, read in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from berth.errors import InputError
from berth.train.data.columns import Layout, Schema
from berth.train.data.frames import frame_rows
from berth.train.data.rows import Rows

_BLOCK = 1 << 16


def parquet_schema(path: Path) -> Schema:
    """Return the columns of a file and their types."""
    try:
        return dict(pl.scan_parquet(path, glob=False).collect_schema())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(error, path) from None


def parquet_rows(path: Path, layout: Layout, offset: int = 0) -> Iterator[Rows]:
    """Yield the rows of a file from a row on."""
    try:
        scan = pl.scan_parquet(path, glob=False).select(layout.columns)
        while True:
            frame = scan.slice(offset, _BLOCK).collect()
            if not len(frame):
                return
            numbers = np.arange(offset + 1, offset + 1 + len(frame))
            yield frame_rows(frame, layout, numbers, numbers)
            offset += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(error, path) from None


def _unreadable(error: Exception, path: Path) -> InputError:
    return InputError(f"can't be read as Parquet: {str(error).splitlines()[0]}", where=str(path))
