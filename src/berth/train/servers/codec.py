"""Encoding of rows on the wire: fp32, IEEE half precision (fp16) or bfloat16, rounded to nearest even.

fp16 keeps 11 bits of values between 6e-8 and 65,504; bf16 keeps 8 bits over the range of fp32. Both are for traffic
only: tables, sums and optimisers stay in single precision.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from berth.errors import UnknownNameError
from berth.native.kernels import entry
from berth.train.sparse import Floats

Codec = Literal["fp32", "fp16", "bf16"]
Halves = npt.NDArray[np.uint16]
Array = npt.NDArray[Any]

CODECS: tuple[Codec, ...] = get_args(Codec)


@entry
def _to_bf16(words: npt.NDArray[np.uint32], out: Halves) -> None:
    for at in range(len(words)):
        word = words[at]
        rounded = word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
        is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[at] = np.uint16((word >> np.uint32(16)) | np.uint32(64) if is_nan else rounded >> np.uint32(16))


@entry
def _from_bf16(halves: Halves, out: npt.NDArray[np.uint32]) -> None:
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
def _to_fp16(values: Floats, out: Halves) -> None:
    for at in range(len(values)):
        out[at] = to_half(values[at])


@entry
def _from_fp16(halves: Halves, out: Floats) -> None:
    for at in range(len(halves)):
        out[at] = from_half(halves[at])


def checked(name: str) -> Codec:
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
