"""Files of named arrays: a JSON header, then the arrays in their in-memory layout.

Without pickle, so reading a file can't run code. A file is a sequence of frames, so that a table can be written in
parts; the hash is computed while writing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError
from berth.train.fault_points import fault_point

MAGIC = b"berth arrays 1\n"
_ALIGN = 64
_BLOCK = 1 << 22

Arrays = Mapping[str, NDArray[Any]]


class ArrayFile:
    """A file being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self._digest = hashlib.sha256()
        self._file = path.open("wb", buffering=0)

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, arrays: Arrays, meta: Any = None) -> None:
        """Write one frame."""
        solid = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        listed = [[name, array.dtype.str, list(array.shape)] for name, array in solid.items()]
        header = json.dumps({"arrays": listed, "meta": meta}, separators=(",", ":")).encode()
        self._put(MAGIC + f"{len(header)}\n".encode() + header + b"\n")
        self._pad()
        for array in solid.values():
            self._put(array.reshape(-1).view(np.uint8).data)
            self._pad()

    def finish(self) -> dict[str, Any]:
        """Sync and close the file; returns its hash and size."""
        os.fsync(self._file.fileno())
        self._file.close()
        return {"sha256": self._digest.hexdigest(), "bytes": self.bytes}

    def _put(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        half = len(view) // 2
        for piece in (view[:half], view[half:]):
            for start in range(0, len(piece), _BLOCK):
                block = piece[start : start + _BLOCK]
                self._digest.update(block)
                written = 0
                while written < len(block):
                    written += self._file.write(block[written:]) or 0
            fault_point("checkpoint: a part half written")
        self.bytes += len(view)

    def _pad(self) -> None:
        self._put(bytes(-self.bytes % _ALIGN))


def check(path: Path, expected: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a file, or None."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected["bytes"]:
                return f"{path.name} has {size:,} bytes instead of {expected['bytes']:,}"
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} can't be read ({error.strerror})"
    return None if found == expected["sha256"] else f"{path.name} is corrupted (its hash differs)"


def frames(path: Path) -> Iterator[tuple[dict[str, NDArray[Any]], Any]]:
    """Yield (arrays, meta) of every frame; the arrays are writable."""
    with path.open("rb") as file:
        while magic := file.read(len(MAGIC)):
            if magic != MAGIC:
                raise InputError("is not a berth array file", where=str(path))
            header = json.loads(file.read(int(file.readline())))
            file.read(1)
            _skip(file.tell(), file)
            arrays = {}
            for name, dtype, shape in header["arrays"]:
                array = np.empty(shape, np.dtype(dtype))
                if array.nbytes and file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
                    raise InputError("is truncated", where=str(path))
                _skip(file.tell(), file)
                arrays[name] = array
            yield arrays, header["meta"]


def _skip(at: int, file: Any) -> None:
    file.seek(-at % _ALIGN, os.SEEK_CUR)
