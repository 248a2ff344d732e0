"""Criteo click logs: a label, 13 integers and 26 hexadecimal ids, separated by tabs.

Numbers become sign(x) log(1 + |x|), missing ones 0. Unreadable lines are returned with their number and the reason.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from berth.errors import InputError
from berth.native.kernels import entry, inlined, kernel
from berth.train.data.columns import Layout
from berth.train.data.lines import Bytes, whole_lines
from berth.train.data.rows import BadRow, Examples, Floats, Ints, Rows, slot_bases
from berth.units import format_count

DENSE, SLOTS = 13, 26
LAYOUT = Layout(
    ("label",),
    {"slots": tuple(f"C{slot + 1}" for slot in range(SLOTS))},
    {"dense": tuple(f"I{number + 1}" for number in range(DENSE))},
)
_SHORTEST = 41  # bytes of a line
_BAD_AT_ONCE = 256
_COLUMNS, _LABEL, _NUMBER, _ID = 1, 2, 3, 4
_SHAPES = {  # where the values of a kind are, and what they are
    _LABEL: (0, 1, re.compile(r"[01]"), "neither 0 nor 1"),
    _NUMBER: (1, 1 + DENSE, re.compile(r"(-?[0-9]{1,18})?"), "not an integer"),
    _ID: (
        1 + DENSE,
        1 + DENSE + SLOTS,
        re.compile(r"[0-9a-fA-F]{0,8}"),
        "not hexadecimal of at most 8 digits",
    ),
}
_NAMES = (*LAYOUT.labels, *LAYOUT.dense["dense"], *LAYOUT.slots["slots"])  # in the order of a line
_SHOWN = 40  # characters of a value
_TAB, _NEWLINE, _RETURN, _MINUS = 9, 10, 13, 45
_DIGITS = np.array(
    [int(chr(byte), 16) if chr(byte) in "0123456789abcdefABCDEF" else 255 for byte in range(256)]
)
_LOGS = np.log1p(np.arange(4096)).astype(np.float32)
_TABLES = (_DIGITS.astype(np.uint8), _LOGS, slot_bases(SLOTS))

Tables = tuple[Bytes, Floats, Ints]  # of digits, of logarithms, of what makes an id a key of its slot
Out = tuple[Ints, Floats, Ints, Ints, Ints]


@inlined
def _line(block: Bytes, at: int, row: int, tables: Tables, out: Out) -> int:
    """Parse a valid line in one pass; returns the start of the next line, or -1 if `_reason` must check it."""
    digits, logs, bases = tables
    keys, dense, labels = out[0], out[1], out[2]
    label = np.int64(block[at]) - 48
    if label < 0 or label > 1 or block[at + 1] != _TAB:
        return -1
    labels[row] = label
    at += 2
    for column in range(DENSE):
        negative = block[at] == _MINUS
        at += negative
        value, first = np.int64(0), at
        while digits[block[at]] < 10:
            value = value * 10 + digits[block[at]]
            at += 1
        if block[at] != _TAB or at - first > 18 or (negative and at == first):
            return -1
        at += 1
        size = logs[value] if value < len(logs) else np.float32(np.log1p(np.float64(value)))
        dense[row, column] = -size if negative else size
    for slot in range(SLOTS):
        value, first = np.int64(0), at
        while digits[block[at]] < 16:
            value = value << 4 | digits[block[at]]
            at += 1
        length = at - first
        if slot == SLOTS - 1 and block[at] == _RETURN:
            at += 1
        if length > 8 or (block[at] != _TAB if slot < SLOTS - 1 else block[at] != _NEWLINE):
            return -1
        keys[row, slot] = bases[slot] + (value + 1 if length else np.int64(0))
        at += 1
    return at


@kernel
def _reason(block: Bytes, at: int, digits: Bytes) -> tuple[int, int]:
    """Return (what is wrong with a line, where it ends)."""
    columns, first, end = 1, at, at
    while block[end] != _NEWLINE:
        columns += block[end] == _TAB
        end += 1
    if columns != 1 + DENSE + SLOTS:
        return _COLUMNS, end
    columns = 0
    while at <= end:
        byte = block[at]
        if byte in (_TAB, _NEWLINE):
            if columns == 0 and at - first != 1:
                return _LABEL, end
            if columns > DENSE and at - first > 8:
                return _ID, end
            columns, first = columns + 1, at + 1
        elif byte == _RETURN and at + 1 == end:
            first += 1
        elif columns == 0 and digits[byte] > 1:
            return _LABEL, end
        elif columns > DENSE and digits[byte] > 15:
            return _ID, end
        at += 1
    return _NUMBER, end


@entry
def _parse(
    block: Bytes, begin: tuple[int, int, int], tables: Tables, out: Out, bad: Ints
) -> tuple[int, int, int, int]:
    """Parse lines until `bad`, which gets (line, reason, start, end), is full.

    Returns (position, rows, bad lines, lines).
    """
    ends, lines = out[3], out[4]
    at, rows, line = begin
    bads = 0
    while at < len(block) and bads < len(bad):
        line += 1
        after = _line(block, at, rows, tables, out)
        if after < 0:
            reason, end = _reason(block, at, tables[0])
            bad[bads, 0], bad[bads, 1], bad[bads, 2], bad[bads, 3] = line, reason, at, end
            bads += 1
            at = end + 1
        else:
            ends[rows], lines[rows] = after, line
            rows += 1
            at = after
    return at, rows, bads, line


def criteo_rows(path: Path, offset: int = 0, line: int = 0) -> Iterator[Rows]:
    """Yield the rows of a file from a byte of the decompressed text on, after `line` lines."""
    try:
        for block in whole_lines(path, offset):
            rows = _rows(block, offset, line)
            yield rows
            offset, line = offset + len(block), line + rows.read
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"can't be read beyond line {line:,}: {error}", where=str(path)) from None


def _describe(reason: int, line: Bytes) -> str:
    """What is wrong with a line: the column, and its value."""
    values = line.tobytes().decode("utf-8", "replace").removesuffix("\r").split("\t")
    if reason == _COLUMNS:
        return f"has {format_count(len(values), 'column')}, not {1 + DENSE + SLOTS}"
    first, last, shape, what = _SHAPES[reason]
    for column in range(first, last):
        if not shape.fullmatch(values[column]):
            value = values[column][:_SHOWN] + ("..." if len(values[column]) > _SHOWN else "")
            return f"{_NAMES[column]} is {what}: {value!r}"
    raise AssertionError(values)


def _rows(block: Bytes, offset: int, line: int) -> Rows:
    most = len(block) // _SHORTEST + 1
    labels, ends, numbers = np.empty((3, most), np.int64)
    keys, dense = np.empty((most, SLOTS), np.int64), np.empty((most, DENSE), np.float32)
    out = (keys, dense, labels, ends, numbers)
    named: list[BadRow] = []
    at, rows, lines = 0, 0, 0
    while at < len(block):
        bad = np.empty((_BAD_AT_ONCE, 4), np.int64)
        at, rows, bads, lines = _parse(block, (at, rows, lines), _TABLES, out, bad)
        for number, reason, start, end in bad[:bads].tolist():
            named.append(BadRow(line + number, _describe(reason, block[start:end])))
    ends, numbers = ends[:rows] + offset, numbers[:rows] + line
    return Rows(Examples(keys[:rows], dense[:rows], labels[:rows]), ends, numbers, named, lines)
