"""What compiled code does with arrays that numba has no fast form of."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

_raw_memmove: Any = _cgutils.raw_memmove  # numba is untyped


def _move(typing_context: Any, array: Any, source: Any, target: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        start, end = (builder.gep(data, [argument]) for argument in arguments[1:3])
        size = context.get_abi_sizeof(data.type.pointee)
        _raw_memmove(builder, end, start, arguments[3], size)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.intp), generate


# move(array, source, target, count): copies consecutive items of an array within it; both ranges may overlap.
# A loop takes several times as long, since numba lets an index be negative.
move: Any = intrinsic(_move)
