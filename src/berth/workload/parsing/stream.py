"""The bytes of a trace: a file or standard input, plain or compressed (detected by the first bytes).

The file is read once, in order and in pieces, so memory does not grow with it. A truncated compressed file is an
error, never a shorter trace.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from berth.errors import TraceError

Progress = Callable[[int, int | None], None]  # bytes read of the file, bytes in all (None: unknown)
_PIECE = 1 << 18
_HEAD = 1 << 16
_BOM = b"\xef\xbb\xbf"


class _Unpacker(Protocol):
    """The common interface of zlib, lzma, bz2 and zstandard."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


_PACKED: dict[bytes, tuple[str, Callable[[], _Unpacker]]] = {
    b"\x1f\x8b": ("gzip", lambda: zlib.decompressobj(31)),
    b"\xfd7zXZ\x00": ("xz", lzma.LZMADecompressor),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda: zstandard.ZstdDecompressor().decompressobj()),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
}
_OTHER = {
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"7z\xbc\xaf": "a 7z archive",
    b"%PDF": "a PDF",
    b"SQLite format 3": "an SQLite database",
}
_UNPACK = "unpack it and give the CSV or JSON file in it"
_EXPORT = "berth reads CSV, JSON and JSON lines, plain or compressed: export it as one of them"


class TraceStream:
    """The decompressed bytes of a trace: the `head`, then all `pieces`, once."""

    def __init__(self, name: str, stream: BinaryIO, size: int | None, progress: Progress | None) -> None:
        self.name = name
        self._size = size
        self._progress = progress
        self._rest = self._unpacked(stream)
        self._first: list[bytes] = []
        self.head = self._look()

    def pieces(self) -> Iterator[bytes]:
        """All bytes from the beginning."""
        return chain(self._first, self._rest)

    def _look(self) -> bytes:
        length = 0
        while length < _HEAD and (piece := next(self._rest, b"")):
            self._first.append(piece)
            length += len(piece)
        head = b"".join(self._first)
        self._refuse_other(head)
        head = head.removeprefix(_BOM)
        self._first = [head]
        return head

    def _refuse_other(self, head: bytes) -> None:
        kind = next((kind for magic, kind in _OTHER.items() if head.startswith(magic)), None)
        if head[257:262] == b"ustar":
            kind = "a tar archive"
        if kind:
            raise TraceError(f"is {kind}", where=self.name, hint=_UNPACK if "archive" in kind else _EXPORT)
        if not head.strip():
            raise TraceError("is empty", where=self.name, hint="a trace has a header and one row per job")
        if b"\0" in head.partition(b"\n")[0]:
            raise TraceError("is binary, not text", where=self.name, hint="a CSV or JSON trace is expected")

    def _unpacked(self, stream: BinaryIO) -> Iterator[bytes]:
        raw = self._raw(stream)
        first = next(raw, b"")
        for magic, (name, unpacker) in _PACKED.items():
            if first.startswith(magic):
                return self._unpack(chain([first], raw), name, unpacker)
        return chain([first], raw)

    def _raw(self, stream: BinaryIO) -> Iterator[bytes]:
        done = 0
        while piece := self._read(stream):
            done += len(piece)
            yield piece
            if self._progress:
                self._progress(done, self._size)

    def _read(self, stream: BinaryIO) -> bytes:
        try:
            return stream.read(_PIECE)
        except OSError as error:
            raise TraceError(f"can't be read: {error.strerror}", where=self.name) from None

    def _unpack(self, raw: Iterator[bytes], name: str, unpacker: Callable[[], _Unpacker]) -> Iterator[bytes]:
        unpack = unpacker()
        try:
            for piece in raw:
                data = piece
                while data:
                    if unpack.eof:
                        # Streams may follow one another (cat a.xz b.xz), and zeros may fill up the last.
                        data = data.lstrip(b"\0")
                        unpack = unpacker() if data else unpack
                    if data and (out := unpack.decompress(data)):
                        yield out
                    data = unpack.unused_data if unpack.eof else b""
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError) as error:
            raise self._damaged(name, str(error)) from None
        if not unpack.eof:
            raise self._damaged(name, "it ends too early")

    def _damaged(self, name: str, why: str) -> TraceError:
        return TraceError(
            f"is damaged: {name} says: {why}", where=self.name, hint="fetch or copy the file again"
        )


@contextmanager
def open_stream(path: str | Path, progress: Progress | None = None) -> Iterator[TraceStream]:
    """Open a trace; `-` is standard input."""
    if str(path) == "-":
        yield TraceStream("<stdin>", sys.stdin.buffer, None, progress)
        return
    path = Path(path)
    try:
        if path.is_dir():
            raise TraceError("is a folder, not a file", where=str(path), hint="name a file in it")
        stream = path.open("rb")
    except FileNotFoundError:
        raise TraceError("no such file", where=str(path), hint="check the path") from None
    except OSError as error:
        raise TraceError(f"can't be read: {error.strerror}", where=str(path)) from None
    with stream:
        yield TraceStream(str(path), stream, path.stat().st_size or None, progress)
