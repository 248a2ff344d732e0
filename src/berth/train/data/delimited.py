"""Text files with a header line: columns are separated by tabs, or by commas if the header has no tab."""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from berth.errors import InputError
from berth.train.data.columns import Layout, Schema
from berth.train.data.frames import frame_rows
from berth.train.data.lines import Bytes, whole_lines
from berth.train.data.rows import Rows

_NEWLINE = 10
_INFERRED = 100  # lines


def text_schema(path: Path) -> Schema:
    """Return the columns of a file, with types inferred from its first lines."""
    separator, _, first = _head(path)
    ends = np.flatnonzero(first == _NEWLINE)[
        : _INFERRED + 1
    ]  # no further: polars may parse lines after n_rows
    text = io.BytesIO(first[: ends[-1] + 1 if len(ends) else None].tobytes())
    with _reporting(str(path)):
        return dict(pl.read_csv(text, separator=separator, truncate_ragged_lines=True).schema)


def text_rows(path: Path, layout: Layout, offset: int = 0, line: int = 0) -> Iterator[Rows]:
    """Yield the rows of a file from a byte of the decompressed text on, after `line` lines."""
    separator, head, _ = _head(path)
    with _reporting(f"{path}:1"):
        names = pl.read_csv(io.BytesIO(head), separator=separator).columns
    if offset == 0:
        offset, line = len(head), 1
    try:
        for block in whole_lines(path, offset):
            ends = np.flatnonzero(block == _NEWLINE) + 1
            yield _block_rows(block, names, separator, layout, ends, offset, line)
            offset, line = offset + len(block), line + len(ends)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"can't be read beyond line {line:,}: {error}", where=str(path)) from None
    except pl.exceptions.PolarsError as error:
        raise _unreadable(error, f"{path}:{line + 1}") from None


@contextmanager
def _reporting(where: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise _unreadable(error, where) from None


def _unreadable(error: Exception, where: str) -> InputError:
    return InputError(f"can't be read as text with columns: {str(error).splitlines()[0]}", where=where)


def _block_rows(
    block: Bytes, names: list[str], separator: str, layout: Layout, ends: np.ndarray, offset: int, line: int
) -> Rows:
    frame = pl.read_csv(
        io.BytesIO(block.tobytes()),
        separator=separator,
        has_header=False,
        new_columns=names,
        infer_schema=False,
        truncate_ragged_lines=True,
    )
    if len(frame) != len(ends):
        raise OSError("a quoted value contains a line break")
    missing = [pl.lit(None, pl.String).alias(name) for name in layout.columns if name not in frame.columns]
    frame = frame.with_columns(missing).select(layout.columns)
    return frame_rows(frame, layout, ends + offset, np.arange(len(frame)) + line + 1)


def header(path: Path) -> bytes:
    """Return the first line of a file."""
    return _head(path)[1]


def _head(path: Path) -> tuple[str, bytes, Bytes]:
    """Return the separator, the header line, and the first block of the file."""
    try:
        first = next(whole_lines(path, 0), None)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"can't be read: {error}", where=str(path)) from None
    if first is None:
        raise InputError("is empty: expected a header line with the names of columns", where=str(path))
    end = int(np.argmax(first == _NEWLINE)) + 1
    head = first[:end].tobytes()
    return ("\t" if b"\t" in head else ","), head, first
