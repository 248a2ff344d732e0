"""The wire protocol: frame headers, payloads of arrays, and the rows, JSON and table states inside them.

A frame is a fixed header followed by arrays in their in-memory layout, little-endian. Incoming data is never executed
or unpickled. Every length is checked against the received bytes and against a limit before memory is allocated; a
violation closes the connection with a `WireError`.

Rows travel as fp32, IEEE half precision (fp16) or bfloat16, rounded to nearest even. fp16 keeps 11 bits of values
between 6e-8 and 65,504; bf16 keeps 8 bits over the range of fp32. Both are for traffic only: tables, sums and
optimisers stay in single precision.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from berth.errors import (
    BerthError,
    InputError,
    RefusedError,
    ServerError,
    UnknownNameError,
    WaitError,
    WireError,
)
from berth.native.kernels import entry
from berth.train.sparse import Floats
from berth.train.tables import State

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Mode = Literal["sync", "async", "half-async", "geo"]
Codec = Literal["fp32", "fp16", "bf16"]

MODES: tuple[Mode, ...] = get_args(Mode)
CODECS: tuple[Codec, ...] = get_args(Codec)
MAGIC = 0x48545242  # "BRTH"
VERSION = 2
HEADER = struct.Struct("<IBBHIIQQQQ")
MAX_PAYLOAD_BYTES = 256 << 20  # of one payload
MAX_HANDSHAKE_BYTES = 4096  # before authentication
MAX_ARRAYS = 4096
ALIGNMENT = 64

_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<B3xIQ")  # kind, columns (0: one dimension), rows
_KINDS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name) for name in ("<u1", "<i4", "<i8", "<f4", "<u2", "<u4")
)
_NUMBERS: dict[Any, int] = {kind: number for number, kind in enumerate(_KINDS)}
_NUMBERS |= {kind.type: number for number, kind in enumerate(_KINDS)}
_STATE_KINDS = "".join(np.dtype(kind).char for kind in ("i8", "i8", "f4", "i8", "i8", "i4"))


class Kind(IntEnum):
    """Type of a frame: a request, or a step of the handshake."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    DONE = 5
    ERROR = 6
    OPEN = 7
    PULL = 8
    PUSH = 9
    PREFETCH = 10
    MERGE = 11
    END_DAY = 12
    LOCK = 13
    PART = 14
    UNLOCK = 15
    LOAD = 16
    STATISTICS = 17
    BYE = 18
    BEGIN = 19  # rank 0 sets the ticket book
    TAKE = 20  # complete tickets, and take the next one
    TICKETS = 21  # read the ticket book
    POST = 22  # metrics of a worker
    COLLECT = 23  # metrics of all workers
    RETIRE = 24  # this worker takes no more steps
    PROBE = 32  # can this server write to a folder?
    SAVE = 33  # write the tables to files
    SAVED = 34  # status of the files; like PING on a control connection only
    PING = 35


class Flag:
    """Bit flags of a frame; plain integers, because they are tested for every frame."""

    NONE = 0
    IN_RING = 1  # the payload is in shared memory at `ring_offset`
    CHECKED = 2  # `checksum` is the CRC-32 of the payload
    END_STEP = 4  # this push ends the sender's step
    LAST = 8  # last part
    CHANGED_ONLY = 16
    RETRY = 32  # resent after a reconnect
    PEEK = 128  # a pull that creates no rows
    RECORDS = 256  # a pull of rows with their optimiser state
    CONFIRM = 64  # a push to be acknowledged by itself; any later response acknowledges it too


_KIND_OF = {int(kind): kind for kind in Kind}
# No response unless they fail or ask for one:
UNACKNOWLEDGED = (Kind.PUSH, Kind.MERGE, Kind.PREFETCH, Kind.POST)


@dataclass(slots=True)
class Header:
    """The first 48 bytes of a frame."""

    kind: Kind
    flags: int
    step: int
    checksum: int
    request: int
    length: int
    ring_offset: int
    released: int  # the receiver's ring is free up to here

    def pack(self) -> bytes:
        """Return the 48 header bytes."""
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.flags,
            self.step,
            self.checksum,
            self.request,
            self.length,
            self.ring_offset,
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
    ring_end: int = 0  # end of the payload in the ring, if it is there

    def arrays(self) -> list[Array]:
        """Return the arrays of the payload as views."""
        return unpack(self.payload)


def read_header(raw: bytes | bytearray | memoryview, max_bytes: int) -> Header:
    """Parse and validate a header."""
    magic, version, kind, flags, step, checksum, request, length, ring_offset, released = HEADER.unpack(raw)
    if magic != MAGIC:
        raise WireError("not a berth frame (wrong magic number)")
    if version != VERSION:
        raise WireError(f"the peer uses protocol version {version}, this process {VERSION}")
    if kind not in _KIND_OF:
        raise WireError(f"unknown frame type {kind}")
    if length > max_bytes:
        raise WireError(f"payload of {length} bytes exceeds the limit of {max_bytes}")
    return Header(_KIND_OF[kind], flags, step, checksum, request, length, ring_offset, released)


def checksum_of(payload: Bytes) -> int:
    """Return the CRC-32 of a payload (about 5 GB/s)."""
    return zlib.crc32(payload.data)


class Layout:
    """Positions of arrays of given types and shapes in a payload."""

    def __init__(self, shapes: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
        self._arrays: list[tuple[int, tuple[int, ...], int, int]] = []  # kind, shape, items, start
        at = _aligned(_COUNT.size + len(shapes) * _ENTRY.size)
        for dtype, shape in shapes:
            kind, items = _NUMBERS[dtype], math.prod(shape)
            self._arrays.append((kind, shape, items, at))
            at = _aligned(at + _KINDS[kind].itemsize * items)
        self.length = at

    def views(self, payload: Bytes) -> list[Array]:
        """Write the table of contents and return views of the arrays for the caller to fill."""
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
    """Return the arrays of a payload as views."""
    if len(payload) < _COUNT.size:
        raise WireError(f"payload of {len(payload)} bytes is too short for arrays")
    data = payload.data
    (count,) = _COUNT.unpack_from(data, 0)
    if count > MAX_ARRAYS or len(payload) < _COUNT.size + count * _ENTRY.size:
        raise WireError(f"payload of {len(payload)} bytes can't hold {count} arrays")
    # Copied: the sender can still write to shared memory.
    table = bytes(data[_COUNT.size : _COUNT.size + count * _ENTRY.size])
    at = _aligned(_COUNT.size + len(table))
    arrays = []
    for kind, columns, rows in _ENTRY.iter_unpack(table):
        if kind >= len(_KINDS):
            raise WireError(f"unknown array type {kind}")
        items = rows * columns if columns else rows
        if at + items * _KINDS[kind].itemsize > len(payload):
            raise WireError(f"array of {items} items exceeds its payload")
        array = np.frombuffer(data, _KINDS[kind], items, at)
        arrays.append(array.reshape(rows, columns) if columns else array)
        at = _aligned(at + array.nbytes)
    return arrays


def layout_of(arrays: Sequence[Array]) -> Layout:
    """Return the layout of a payload with copies of the arrays."""
    return Layout([(array.dtype, array.shape) for array in arrays])


def copy_arrays(arrays: Sequence[Array], views: Sequence[Array]) -> None:
    """Copy arrays to the views of their layout."""
    for view, array in zip(views, arrays, strict=True):
        view[...] = array


def pack(arrays: Sequence[Array]) -> Bytes:
    """Return a new payload with copies of the arrays, for small or rare messages."""
    layout = layout_of(arrays)
    payload = np.zeros(layout.length, np.uint8)
    copy_arrays(arrays, layout.views(payload))
    return payload


def pack_json(facts: object) -> Array:
    """Return a value as an array of UTF-8 JSON: for settings and messages, never for rows."""
    return np.frombuffer(bytearray(json.dumps(facts), "utf-8"), np.uint8)


def read_json(array: Array) -> Any:
    """Return the value that `pack_json` encoded."""
    try:
        return json.loads(array.tobytes())
    except ValueError as error:
        raise WireError("a JSON message can't be parsed") from error


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def state_to_arrays(state: State) -> list[Array]:
    """Return the arrays that represent a part of a table."""
    day = np.array([state.whole, state.day], np.int64)
    return [day, state.keys, state.records, state.removed, state.waiting_keys, state.waiting]


def state_from_arrays(arrays: list[Array]) -> State:
    """Return the part that `state_to_arrays` was given; copied, because the memory of the frame is reused."""
    day, keys, records, removed, waiting_keys, waiting = (array.copy() for array in arrays)
    if "".join(array.dtype.char for array in arrays) != _STATE_KINDS or len(day) != 2:
        raise WireError("the arrays are not a table state")
    if records.ndim != 2 or len(records) != len(keys) or len(waiting) != len(waiting_keys):
        raise WireError("the columns of a table state differ in length")
    return State(bool(day[0]), int(day[1]), keys, records, removed, waiting_keys, waiting)


def error_to_json(error: BerthError) -> dict[str, str]:
    """Return the JSON form of an error."""
    return {"kind": type(error).__name__, "what": str(error)}


def error_from_json(facts: dict[str, str]) -> BerthError:
    """Return the error that a server reported."""
    known = (InputError, RefusedError, WaitError, WireError)
    kind = {kind.__name__: kind for kind in known}.get(facts.get("kind", ""), ServerError)
    return kind(facts.get("what", "unknown error"))


@entry
def _to_bf16(words: npt.NDArray[np.uint32], out: npt.NDArray[np.uint16]) -> None:
    for at in range(len(words)):
        word = words[at]
        rounded = word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
        is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[at] = np.uint16((word >> np.uint32(16)) | np.uint32(64) if is_nan else rounded >> np.uint32(16))


@entry
def _from_bf16(halves: npt.NDArray[np.uint16], out: npt.NDArray[np.uint32]) -> None:
    for at in range(len(halves)):
        out[at] = np.uint32(halves[at]) << np.uint32(16)


def _to_half(_context: Any, value: Any) -> Any:
    """Use the CPU's conversion instruction (eight values at a time), which numpy does not."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


def _from_half(_context: Any, half: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


to_half: Any = intrinsic(_to_half)
from_half: Any = intrinsic(_from_half)


@entry
def _to_fp16(values: Floats, out: npt.NDArray[np.uint16]) -> None:
    for at in range(len(values)):
        out[at] = to_half(values[at])


@entry
def _from_fp16(halves: npt.NDArray[np.uint16], out: Floats) -> None:
    for at in range(len(halves)):
        out[at] = from_half(halves[at])


def checked_codec(name: str) -> Codec:
    """Return a codec by name."""
    for codec in CODECS:
        if codec == name:
            return codec
    raise UnknownNameError("codec of rows", name, CODECS)


def dtype_of(codec: Codec) -> type[np.float32] | type[np.uint16]:
    """Return the element type of an encoded row."""
    return np.float32 if codec == "fp32" else np.uint16


def encode(codec: Codec, values: Floats, out: Array) -> None:
    """Write the encoded rows to `out`."""
    if codec == "bf16":
        _to_bf16(values.reshape(-1).view(np.uint32), out.reshape(-1))
    elif codec == "fp16":
        _to_fp16(values.reshape(-1), out.reshape(-1))  # values beyond 65,504 become infinite
    else:
        out[...] = values


def decode(codec: Codec, values: Array) -> Floats:
    """Return rows as fp32; the same memory if they are fp32 already."""
    if codec == "fp32":
        return values
    out = np.empty(values.shape, np.float32)
    if codec == "bf16":
        _from_bf16(values.reshape(-1), out.reshape(-1).view(np.uint32))
    else:
        _from_fp16(values.reshape(-1), out.reshape(-1))
    return out
