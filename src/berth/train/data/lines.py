"""Text files as blocks of whole lines, from any byte on: plain, or compressed with gzip, xz or zstandard.

A truncated or damaged compressed file is an error.
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
_PIECE = 1 << 16  # bytes decompressed at a time


def whole_lines(path: Path, offset: int) -> Iterator[Bytes]:
    """Yield blocks of whole lines, each valid until the next; the last line may lack a newline.

    `offset` is a byte of the decompressed text. Decompression may raise OSError, EOFError, LZMAError and zlib.error.
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
    """Skip to a byte; a compressed file is decompressed up to it."""
    if isinstance(file, gzip.GzipFile | lzma.LZMAFile) or not file.seekable():
        while offset > 0:
            read = len(file.read(min(offset, _BLOCK)))
            offset = offset - read if read else 0  # the file is shorter than before: no rows
    else:
        file.seek(offset)


class _Zstandard(io.RawIOBase):
    """Consecutive zstandard frames as one file: the library's reader stops after the first, even a truncated one."""

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
        """Decompress some bytes; returns whether there were any."""
        piece = self._packed or self._file.read(_PIECE)
        if not piece:
            if not self._frame.eof:
                raise EOFError("the file is truncated")
            return False
        if self._frame.eof:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            self._unpacked = memoryview(self._frame.decompress(piece))
        except self._zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        self._packed = self._frame.unused_data
        return True
