"""Streams the objects of a long JSON list, one at a time, in constant memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from berth.errors import TraceError
from berth.workload.parsing.stream import TraceStream

_BETWEEN = re.compile(r"[\s,]*")
_WINDOW = 1 << 20  # an error further than this from the end of what was read is not for lack of text


@dataclass(frozen=True, slots=True)
class Item:
    """One element of the list, and where it begins."""

    value: Any
    line: int
    column: int


class _Text:
    """The text of a file from some point on, refilled as it is used up."""

    def __init__(self, source: TraceStream) -> None:
        self._source = source
        self._pieces = source.pieces()
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self.text = ""
        self.start = 0  # what lies before was consumed
        self.line = 1
        self.column = 1

    def refill(self) -> bool:
        """Reads more; False at the end of the file."""
        wanted = max(_WINDOW, len(self.text) - self.start)
        parts, length = [self.text[self.start :]], 0
        while length < wanted and (piece := next(self._pieces, None)) is not None:
            parts.append(self._decoded(piece))
            length += len(parts[-1])
        self.text, self.start = "".join(parts), 0
        return length > 0

    def _decoded(self, piece: bytes) -> str:
        try:
            return self._decode(piece)
        except UnicodeDecodeError:
            raise self.error("is not text (UTF-8) beyond this point", self.start) from None

    def consume(self, end: int) -> None:
        """Drop everything before `end`."""
        newlines = self.text.count("\n", self.start, end)
        self.line += newlines
        if newlines:
            self.column = end - self.text.rfind("\n", self.start, end)
        else:
            self.column += end - self.start
        self.start = end

    def error(self, what: str, position: int) -> TraceError:
        """An error at a position of the text."""
        self.consume(position)
        where = f"{self._source.name}:{self.line}:{self.column}"
        return TraceError(what, where=where, hint="a JSON list of jobs is expected")


def items(source: TraceStream) -> Iterator[Item]:
    """The elements of a file that is one JSON list."""
    decoder = json.JSONDecoder()
    text = _Text(source)
    text.refill()
    opening = re.match(r"\s*\[", text.text)
    if not opening:
        raise text.error("is not a JSON list", 0)
    text.consume(opening.end())
    while True:
        _skip_between(text)
        if text.start == len(text.text):
            raise text.error("the list is not closed: the file ends too early", text.start)
        if text.text[text.start] == "]":
            return
        value, end = _decode_one(decoder, text)
        yield Item(value, text.line, text.column)
        text.consume(end)


def _skip_between(text: _Text) -> None:
    while True:
        between = _BETWEEN.match(text.text, text.start)
        text.consume(between.end() if between else text.start)
        if text.start < len(text.text) or not text.refill():
            return


def _decode_one(decoder: json.JSONDecoder, text: _Text) -> tuple[Any, int]:
    while True:
        try:
            return decoder.raw_decode(text.text, text.start)
        except json.JSONDecodeError as error:
            unfinished = len(text.text) - error.pos < _WINDOW
            if not unfinished or not text.refill():
                raise text.error(f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.pos) from None
        except RecursionError:
            raise text.error("is nested too deeply", text.start) from None
        except ValueError as error:  # a number of thousands of digits
            raise text.error(
                f"is not JSON that berth can read: {str(error).split(';')[0]}", text.start
            ) from None
