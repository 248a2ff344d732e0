"""What travels: a fixed header, then named-by-position arrays as they stand in memory, little-endian.

Nothing that comes in is executed or unpickled. Every length is checked against what is really there, and
against a bound, before memory is taken for it; whatever does not fit ends the connection with a `WireError`.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from berth.errors import WireError

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

MAGIC = 0x48545242  # "BRTH"
VERSION = 1
HEADER = struct.Struct("<IBBHIIQQQQ")
MOST_BYTES = 256 << 20  # of one payload
MOST_GREETING_BYTES = 4096  # before the secret is proven
MOST_ARRAYS = 4096
ALIGNMENT = 64

_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<B3xIQ")  # kind, columns (0: one dimension), rows
_KINDS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name) for name in ("<u1", "<i4", "<i8", "<f4", "<u2", "<u4")
)
_NUMBERS: dict[Any, int] = {kind: number for number, kind in enumerate(_KINDS)}
_NUMBERS |= {kind.type: number for number, kind in enumerate(_KINDS)}


class Kind(IntEnum):
    """What a frame asks for, or says."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    DONE = 5
    ERROR = 6
    OPEN = 7
    PULL = 8
    PUSH = 9
    WARM = 10
    MERGE = 11
    END_DAY = 12
    HOLD = 13
    PART = 14
    LET_GO = 15
    LOAD = 16
    STATISTICS = 17
    BYE = 18


class Flag:
    """What is special about a frame: bits of a plain number, as they are looked at for every frame."""

    NONE = 0
    IN_RING = 1  # the payload stands in shared memory at `place`
    CHECKED = 2  # `checksum` is the CRC-32 of the payload
    END_STEP = 4  # the sender's step ends with this push
    LAST = 8  # no more parts come
    CHANGED_ONLY = 16
    AGAIN = 32  # sent before over a connection that broke
    PEEK = 128  # a pull that makes no rows
    CONFIRM = 64  # a push that wants an answer of its own: any later answer confirms it, too


_KIND_OF = {int(kind): kind for kind in Kind}


@dataclass(slots=True)
class Header:
    """The first 48 bytes of a frame."""

    kind: Kind
    flags: int
    step: int
    checksum: int
    request: int
    length: int
    place: int
    released: int  # the receiver's ring is free up to here

    def pack(self) -> bytes:
        """As it travels."""
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.flags,
            self.step,
            self.checksum,
            self.request,
            self.length,
            self.place,
            self.released,
        )


@dataclass(slots=True)
class Frame:
    """A frame that has arrived."""

    kind: Kind
    flags: int
    step: int
    request: int
    payload: Bytes
    ring_end: int = 0  # where its payload ends in the ring, if it stands there

    def arrays(self) -> list[Array]:
        """The arrays of the payload, in place."""
        return unpack(self.payload)


def read_header(raw: bytes | bytearray | memoryview, most_bytes: int) -> Header:
    """A header from its bytes; refuses what berth would not send."""
    magic, version, kind, flags, step, checksum, request, length, place, released = HEADER.unpack(raw)
    if magic != MAGIC:
        raise WireError("this is not a frame of berth's")
    if version != VERSION:
        raise WireError(f"the other side speaks version {version}, this one {VERSION}")
    if kind not in _KIND_OF:
        raise WireError(f"no frame is of kind {kind}")
    if length > most_bytes:
        raise WireError(f"a payload of {length} bytes is more than the {most_bytes} allowed here")
    return Header(_KIND_OF[kind], flags, step, checksum, request, length, place, released)


def checksum_of(payload: Bytes) -> int:
    """CRC-32, some 5 GB/s."""
    return zlib.crc32(payload.data)


class Layout:
    """Where arrays of given kinds and shapes stand in a payload."""

    def __init__(self, shapes: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
        self._arrays: list[tuple[int, tuple[int, ...], int, int]] = []  # kind, shape, items, start
        at = _aligned(_COUNT.size + len(shapes) * _ENTRY.size)
        for dtype, shape in shapes:
            kind, items = _NUMBERS[dtype], math.prod(shape)
            self._arrays.append((kind, shape, items, at))
            at = _aligned(at + _KINDS[kind].itemsize * items)
        self.length = at

    def views(self, payload: Bytes) -> list[Array]:
        """Write the table of contents; the arrays themselves are for the caller to fill."""
        data = payload.data
        _COUNT.pack_into(data, 0, len(self._arrays))
        views: list[Array] = []
        entry = _COUNT.size
        for kind, shape, items, start in self._arrays:
            _ENTRY.pack_into(data, entry, kind, shape[1] if len(shape) > 1 else 0, shape[0])
            views.append(np.frombuffer(data, _KINDS[kind], items, start).reshape(shape))
            entry += _ENTRY.size
        return views


def unpack(payload: Bytes) -> list[Array]:
    """The arrays of a payload, as views of it."""
    if len(payload) < _COUNT.size:
        raise WireError(f"a payload of {len(payload)} bytes holds no arrays")
    data = payload.data
    (count,) = _COUNT.unpack_from(data, 0)
    if count > MOST_ARRAYS or len(payload) < _COUNT.size + count * _ENTRY.size:
        raise WireError(f"a payload of {len(payload)} bytes can't hold {count} arrays")
    table = bytes(data[_COUNT.size : _COUNT.size + count * _ENTRY.size])  # shared memory may change under us
    at = _aligned(_COUNT.size + len(table))
    arrays = []
    for kind, columns, rows in _ENTRY.iter_unpack(table):
        if kind >= len(_KINDS):
            raise WireError(f"no array is of kind {kind}")
        items = rows * columns if columns else rows
        if at + items * _KINDS[kind].itemsize > len(payload):
            raise WireError(f"an array of {items} items reaches beyond its payload")
        array = np.frombuffer(data, _KINDS[kind], items, at)
        arrays.append(array.reshape(rows, columns) if columns else array)
        at = _aligned(at + array.nbytes)
    return arrays


def pack(arrays: Sequence[Array]) -> Bytes:
    """A payload of its own with copies of arrays: for what is small or rare."""
    layout = Layout([(array.dtype, array.shape) for array in arrays])
    payload = np.zeros(layout.length, np.uint8)
    for view, array in zip(layout.views(payload), arrays, strict=True):
        view[...] = array
    return payload


def pack_json(facts: object) -> Array:
    """Facts as an array of UTF-8: for settings and messages, never for rows."""
    return np.frombuffer(bytearray(json.dumps(facts), "utf-8"), np.uint8)


def read_json(array: Array) -> Any:
    """The facts of `pack_json`."""
    try:
        return json.loads(array.tobytes())
    except ValueError as error:
        raise WireError("a message that should be JSON is not") from error


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
