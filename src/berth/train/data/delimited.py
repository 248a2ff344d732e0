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

_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_INFERRED = 100  # lines


def text_schema(path: Path) -> tuple[Schema, frozenset[str]]:
    """Return the columns of a file with types inferred from its first lines, and those of text that may be numbers.

    These have a number among the text, or no value at all.
    """
    separator, head, first = _head(path)
    # no further: polars may parse lines after n_rows
    ends = np.flatnonzero(first == _NEWLINE)[: _INFERRED + 1]
    text = io.BytesIO(first[: ends[-1] + 1 if len(ends) else None].tobytes())
    _names(path, head, separator)
    with _reporting(str(path)):
        frame = pl.read_csv(text, separator=separator, truncate_ragged_lines=True)
    if not len(frame):
        raise InputError("has no rows", where=str(path))
    words = frame.select(pl.col(pl.String))
    return dict(frame.schema), frozenset(column.name for column in words if _may_be_numbers(column))


def _may_be_numbers(column: pl.Series) -> bool:
    values = column.drop_nulls()
    return not len(values) or values.cast(pl.Float64, strict=False).count() > 0


def text_rows(path: Path, layout: Layout, offset: int = 0, line: int = 0) -> Iterator[Rows]:
    """Yield the rows of a file from a byte of the decompressed text on, after `line` lines."""
    separator, head, _ = _head(path)
    names = _names(path, head, separator)
    if offset == 0:
        offset, line = len(head), 1
    try:
        for block in whole_lines(path, offset):
            ends = np.flatnonzero(block == _NEWLINE) + 1
            yield _block_rows(block, head, names, separator, layout, ends, offset, line)
            offset, line = offset + len(block), line + len(ends)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"can't be read beyond line {line:,}: {error}", where=str(path)) from None
    except pl.exceptions.PolarsError as error:
        raise _unreadable(error, f"{path}:{line + 1}") from None


def _names(path: Path, head: bytes, separator: str) -> list[str]:
    """Return the names of the columns."""
    with _reporting(f"{path}:1"):
        frame = pl.read_csv(io.BytesIO(head), separator=separator, has_header=False, infer_schema=False)
    named = [name or "" for name in (frame.row(0) if len(frame) else ())]
    for name in named:
        if name and named.count(name) > 1:
            raise InputError(
                f"column {name!r} is entered twice", where=f"{path}:1", hint="rename one of them"
            )
    with _reporting(f"{path}:1"):
        return pl.read_csv(io.BytesIO(head), separator=separator).columns


def _wrong_fields(block: Bytes, ends: np.ndarray, separator: str, columns: int) -> dict[int, str]:
    """Return the rows that do not have as many fields as the header, with the reason.

    Separators inside quotes are part of a value. Where quotes of a line do not match, it is left to the parser.
    """
    begins = np.concatenate(([0], ends[:-1]))
    quotes, is_separator = block == _QUOTE, block == ord(separator)
    unmatched = np.zeros(len(ends), np.bool_)
    if quotes.any():
        opened = np.cumsum(quotes)
        before = np.repeat(np.concatenate(([0], opened[ends[:-1] - 1])), ends - begins)
        is_separator &= (opened - before) % 2 == 0
        unmatched = np.add.reduceat(quotes, begins, dtype=np.int64) % 2 == 1
    fields = np.add.reduceat(is_separator, begins, dtype=np.int64) + 1
    blank = (ends - begins == 1) | ((ends - begins == 2) & (block[begins] == _RETURN))
    rows = np.flatnonzero((fields != columns) & ~unmatched & ~blank).tolist()
    return {row: f"expected {columns} fields, as in the header, got {fields[row]}" for row in rows}


@contextmanager
def _reporting(where: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise _unreadable(error, where) from None


def _unreadable(error: Exception, where: str) -> InputError:
    return InputError(f"can't be read as text with columns: {str(error).splitlines()[0]}", where=where)


def _block_rows(
    block: Bytes,
    head: bytes,
    names: list[str],
    separator: str,
    layout: Layout,
    ends: np.ndarray,
    offset: int,
    line: int,
) -> Rows:
    # Without the header, the first row would decide how many columns there are.
    text = io.BytesIO(head + block.tobytes())
    frame = pl.read_csv(text, separator=separator, infer_schema=False, truncate_ragged_lines=True)
    if len(frame) != len(ends):
        raise OSError("a quoted value contains a line break")
    wrong = _wrong_fields(block, ends, separator, len(names))
    frame = frame.select(layout.columns)
    return frame_rows(frame, layout, ends + offset, np.arange(len(frame)) + line + 1, wrong)


def header(path: Path) -> bytes:
    """Return the first line of a file, nothing if it is empty."""
    first = _first_block(path)
    return b"" if first is None else _first_line(first)


def _head(path: Path) -> tuple[str, bytes, Bytes]:
    """Return the separator, the header line, and the first block of the file."""
    first = _first_block(path)
    if first is None:
        raise InputError("is empty: expected a header line with the names of columns", where=str(path))
    head = _first_line(first)
    return ("\t" if b"\t" in head else ","), head, first


def _first_block(path: Path) -> Bytes | None:
    try:
        return next(whole_lines(path, 0), None)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"can't be read: {error}", where=str(path)) from None


def _first_line(block: Bytes) -> bytes:
    return block[: int(np.argmax(block == _NEWLINE)) + 1].tobytes()
