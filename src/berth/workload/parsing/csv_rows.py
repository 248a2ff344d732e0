"""Rows of a CSV file as blocks of text columns, with the line on which each row begins.

Nearly all traces have neither quotes nor odd line ends: their blocks are split by polars, after numpy has
made sure that every line has the same number of fields. From the first block on that has quotes, bytes
that are not UTF-8 or lone carriage returns, the slow path takes over: Python's csv module, one record at
a time. Both give the same rows; the slow path takes about five times as long.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import polars as pl
from numpy.typing import NDArray

from berth.arrays import BoolArray, Int64Array
from berth.errors import TraceError
from berth.workload.trace import BadRow, BadRowCollector

_BLOCK_BYTES = 1 << 23
_LONGEST_LINE = 1 << 26
_RECORDS = 50_000
_NEWLINE, _COMMA = 10, 44


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows: every column is text, an empty field is null."""

    cells: pl.DataFrame
    lines: Int64Array
    raws: Sequence[str] | None = None  # the raw records, if fields may be quoted

    def locate(self, row: int, field: str) -> tuple[int, int]:
        """Line and column (from 1) at which a field begins."""
        index = self.cells.columns.index(field)
        raw = self.raws[row] if self.raws else ",".join(cell or "" for cell in self.cells.row(row))
        before = raw[: _field_start(raw, index)]
        last_newline = before.rfind("\n")
        return int(self.lines[row]) + before.count("\n"), len(before) - last_newline


def _field_start(raw: str, index: int) -> int:
    quoted = False
    for position, letter in enumerate(raw):
        if index == 0:
            return position
        if letter == '"':
            quoted = not quoted
        elif letter == "," and not quoted:
            index -= 1
    return len(raw)


class CsvRows:
    """Splits the bytes of a CSV file into rows; rows of the wrong width are bad rows."""

    def __init__(self, source: str, names: Sequence[str], *, header: bool, bad_rows: BadRowCollector) -> None:
        self._source = source
        self._names = list(names)
        self._header = header  # the first line that is not blank is still to be skipped
        self._faults = bad_rows
        self._line = 1
        self.rows = 0
        self.blank_lines = 0

    def blocks(self, pieces: Iterable[bytes]) -> Iterator[Block]:
        """The rows in order, some tens of thousands at a time."""
        texts = self._whole_lines(pieces)
        for raw in texts:
            body = self._skip_header(raw)
            text = body.replace(b"\r\n", b"\n")
            if b'"' in text or b"\r" in text or not _is_utf8(text):
                yield from self._slow(chain([body], texts))
                return
            yield from self._fast(text)

    def _whole_lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes, cut at line ends; the last line gets a newline if it has none."""
        held: list[bytes] = []
        length = 0
        for piece in pieces:
            held.append(piece)
            length += len(piece)
            if length < _BLOCK_BYTES:
                continue
            joined = b"".join(held)
            cut = joined.rfind(b"\n") + 1
            if cut:
                yield joined[:cut]
            elif length > _LONGEST_LINE:
                raise TraceError("a line of more than 64 MiB", where=self._source, hint="is it a CSV file?")
            held, length = [joined[cut:]], length - cut
        if rest := b"".join(held):
            yield rest if rest.endswith(b"\n") else rest + b"\n"

    def _skip_header(self, text: bytes) -> bytes:
        """The text after the first line that is not blank."""
        start = 0
        while self._header and start < len(text):
            end = text.index(b"\n", start) + 1
            self._header = not text[start:end].strip()
            self.blank_lines += self._header
            self._line += 1
            start = end
        return text[start:]

    def _fast(self, text: bytes) -> Iterator[Block]:
        buffer = np.frombuffer(text, np.uint8)
        newline = buffer == _NEWLINE
        count = int(np.count_nonzero(newline))
        lines = np.arange(self._line, self._line + count, dtype=np.int64)
        self._line += count
        if not self._all_of_full_width(buffer, newline, count):
            good = self._of_full_width(text, buffer, np.flatnonzero(newline), lines)
            lengths = np.diff(np.flatnonzero(newline), prepend=-1)
            text = buffer[np.repeat(good, lengths)].tobytes()
            lines = lines[good]
        else:
            self.rows += count
        if len(lines):
            yield Block(self._split(text, len(lines)), lines)

    def _all_of_full_width(self, buffer: NDArray[np.uint8], newline: BoolArray, count: int) -> bool:
        separators = np.flatnonzero(newline | (buffer == _COMMA))
        width = len(self._names)
        return len(separators) == count * width and bool(newline[separators[width - 1 :: width]].all())

    def _of_full_width(
        self, text: bytes, buffer: NDArray[np.uint8], ends: Int64Array, lines: Int64Array
    ) -> BoolArray:
        """Which lines have all their fields; the others are bad rows, except blank ones."""
        starts = np.concatenate(([0], ends[:-1] + 1))
        widths = np.add.reduceat(buffer == _COMMA, starts, dtype=np.int64) + 1
        blank = ends == starts
        self.blank_lines += int(blank.sum())
        self.rows += int((~blank).sum())
        wanted = len(self._names)
        for wrong in (~blank & (widths < wanted), ~blank & (widths > wanted)):
            picked = np.flatnonzero(wrong)
            rows = (
                self._misshapen(int(lines[row]), text[starts[row] : ends[row]].decode(), int(widths[row]))
                for row in picked
            )
            self._faults.add(len(picked), rows)
        good: BoolArray = ~blank & (widths == wanted)
        return good

    def _split(self, text: bytes, count: int) -> pl.DataFrame:
        schema = dict.fromkeys(self._names, pl.String())
        cells = pl.read_csv(text, has_header=False, schema=schema, quote_char=None)
        assert len(cells) == count, f"{self._source}: {count} lines gave {len(cells)} rows"
        return cells

    def _misshapen(self, line: int, raw: str, width: int) -> BadRow:
        reason = "too few fields" if width < len(self._names) else "too many fields"
        return BadRow(line, None, "", raw, reason)

    def _slow(self, texts: Iterator[bytes]) -> Iterator[Block]:
        records = self._records(_Lines(texts, self._line))
        while batch := list(islice(records, _RECORDS)):
            good = [record for record in batch if record[2] is not None]
            if not good:
                continue
            columns = zip(*(fields for _, _, fields in good if fields), strict=True)
            schema = dict.fromkeys(self._names, pl.String())
            cells = pl.DataFrame(dict(zip(self._names, map(list, columns), strict=True)), schema=schema)
            lines = np.fromiter((line for line, _, _ in good), np.int64, len(good))
            yield Block(cells, lines, [raw for _, raw, _ in good])

    def _records(self, feed: _Lines) -> Iterator[tuple[int, str, list[str | None] | None]]:
        """First line, raw text and fields of each record; a record without fields is a bad row."""
        reader = csv.reader(feed, strict=True)
        while feed.more():
            feed.mark()
            try:
                fields = next(reader, [])
                fault = None
            except csv.Error:
                fields, fault = [], "the quotes are broken"
            line, taken = feed.taken()
            raw = "".join(taken).rstrip("\r\n")
            if not fields and fault is None:
                self.blank_lines += 1
                continue
            self.rows += 1
            if fault is None and not _is_text(raw):
                fault = "is not text (UTF-8)"
            if fault is None and len(fields) != len(self._names):
                fault = self._misshapen(line, raw, len(fields)).reason
            if fault is None:
                yield line, raw, [field or None for field in fields]
                continue
            # A stray quote may have swallowed good lines: only the first is bad, the others are read again.
            feed.give_back(taken[1:])
            shown = taken[0].rstrip("\r\n").encode(errors="replace").decode()
            self._faults.add(1, [BadRow(line, None, "", shown, fault)])
            yield line, raw, None


class _Lines:
    """Lines for the csv module, which remembers those that a record took and can take some back."""

    def __init__(self, texts: Iterator[bytes], line: int) -> None:
        # Not str.splitlines: it also splits at form feeds and the like, which do not end a line in CSV.
        decoded = (text.decode(errors="surrogateescape").removesuffix("\n") for text in texts)
        self._lines = (f"{line}\n" for text in decoded for line in text.split("\n"))
        self._back: deque[str] = deque()
        self._next_line = line
        self._taken: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._back.popleft() if self._back else next(self._lines)
        self._taken.append(line)
        return line

    def more(self) -> bool:
        """Whether there is another line."""
        if not self._back and (line := next(self._lines, None)) is not None:
            self._back.append(line)
        return bool(self._back)

    def mark(self) -> None:
        """A record begins here."""
        self._taken = []

    def taken(self) -> tuple[int, list[str]]:
        """Number of the record's first line, and its lines."""
        line = self._next_line
        self._next_line += len(self._taken)
        return line, self._taken

    def give_back(self, lines: Sequence[str]) -> None:
        """These are to be read once more."""
        self._next_line -= len(lines)
        self._back.extendleft(reversed(lines))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(raw: str) -> bool:
    return raw.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in raw)
