"""Text files in blocks of whole lines, from any byte on: plain, or packed with gzip, xz or zstandard.

A packed file that ends too early, or is damaged, is an error and never a shorter file.
"""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_BLOCK = 1 << 20
_PIECE = 1 << 16  # bytes that are unpacked at a time


def whole_lines(path: Path, offset: int) -> Iterator[Bytes]:
    """Blocks that end with a line, each good until the next is asked for; a last line may lack its end.

    They begin at a byte of the unpacked text. Errors of the packers that are no OSError are EOFError, LZMAError
    and zlib.error.
    """
    with _opened(path) as file:
        _skip(file, offset)
        buffer, held = bytearray(_BLOCK), 0
        while read := file.readinto(memoryview(buffer)[held:]):
            held += read
            cut = buffer.rfind(b"\n", held - read, held) + 1
            if cut:
                yield np.frombuffer(buffer, np.uint8, cut)
                rest = buffer[cut:held]
                buffer[: len(rest)] = rest
                held = len(rest)
            elif held == len(buffer):
                buffer = buffer + bytearray(len(buffer))
        if held:
            yield np.frombuffer(buffer[:held] + b"\n", np.uint8)


def _opened(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".zst":
        return _Zstandard(path)
    return path.open("rb")


def _skip(file: BufferedIOBase, offset: int) -> None:
    """A packed file has to be unpacked up to there, which is quicker than reading its rows."""
    if isinstance(file, gzip.GzipFile | lzma.LZMAFile) or not file.seekable():
        while offset > 0:
            read = len(file.read(min(offset, _BLOCK)))
            offset = offset - read if read else 0  # the file has become shorter: there are no rows
    else:
        file.seek(offset)


class _Zstandard(io.RawIOBase):
    """Frames that follow one another, as one file: the library's own reader ends after the first, whole or torn."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._zstandard = zstandard
        self._file = path.open("rb")
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._packed = b""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            if not self._unpack():
                return 0
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _unpack(self) -> bool:
        """Some more bytes; whether there were any to unpack."""
        piece = self._packed or self._file.read(_PIECE)
        if not piece:
            if not self._frame.eof:
                raise EOFError("it ends too early")
            return False
        if self._frame.eof:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            self._unpacked = memoryview(self._frame.decompress(piece))
        except self._zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        self._packed = self._frame.unused_data
        return True
