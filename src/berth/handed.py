"""Named tuples of arrays and functions that compiled code knows by one address.

Compiled code passes a tuple to a function by copying all of it, and counts references to each of its arrays
whenever one is fetched: for a world of a dozen arrays that is most of the running time, and of the compiling.
A tuple that is handed over is written down once, as a table of addresses and lengths. Compiled code passes the
table's address, reads it by the tuple's own names, and counts nothing: the caller keeps the arrays alive. No
compiled code writes to the table, so what was read of it once need not be read again.
"""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core.typing import templates
from numba.np import arrayobj

T = TypeVar("T", bound=tuple[Any, ...])
_typeof: Any = numba.typeof  # numba is untyped
_extending: Any = extending
_AttributeTemplate: Any = templates.AttributeTemplate
_populate: Any = arrayobj.populate_array


class Handed(types.Type):
    """The type of such a table: what stands under which name."""

    def __init__(self, kind: str, fields: tuple[tuple[str, Any], ...]) -> None:
        self.fields = fields
        # short, since the types of its arguments are part of the name of every compiled function
        super().__init__(f"{kind}.{hashlib.sha256(repr(fields).encode()).hexdigest()[:16]}")

    @cached_property
    def at(self) -> dict[str, tuple[int, Any]]:
        """By name: the first of its words in the table, and its type."""
        found, words = {}, 0
        for name, kind in self.fields:
            found[name] = words, kind
            words += _words(kind)
        return found


def _words(kind: Any) -> int:
    """A function is its address, an array that of its data and its lengths."""
    if isinstance(kind, Handed):
        return sum(_words(part) for _, part in kind.fields)
    return 1 + kind.ndim if isinstance(kind, types.Array) else 1


class Table:
    """A tuple, written down; it lives as long as somebody may read it."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.kind = _kind(values)
        self._words = np.array(list(_written(values)), np.int64)
        self.address = int(self._words.ctypes.data)


def handed(values: T) -> T:
    """A named tuple of arrays, functions and other such tuples, to be handed to compiled code.

    To those who read the code it is the tuple itself, and compiled functions treat it so.
    """
    return cast(T, Table(values))


def _kind(values: Any) -> Handed:
    fields = zip(values._fields, values, strict=True)
    parts = tuple((name, _kind(part) if isinstance(part, tuple) else _typeof(part)) for name, part in fields)
    kind: Handed = _known(type(values).__name__, parts)
    return kind


_known: Any = cache(Handed)  # its name takes long to make


def _written(values: tuple[Any, ...]) -> Any:
    for value in values:
        if isinstance(value, tuple):
            yield from _written(value)
        elif isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, "arrays are handed over whole"
            yield from (value.ctypes.data, *value.shape)
        else:
            yield value.__wrapper_address__()


@_extending.typeof_impl.register(Table)
def _typeof_table(table: Table, context: Any) -> Handed:
    return table.kind


@_extending.register_model(Handed)
class _Address(extending.models.OpaqueModel):
    """An address."""


@_extending.unbox(Handed)
def _unbox(kind: Handed, table: Any, to: Any) -> Any:
    address = to.pyapi.object_getattr_string(table, "address")
    pointer = to.pyapi.long_as_voidptr(address)
    to.pyapi.decref(address)
    return _extending.NativeValue(pointer, is_error=to.pyapi.c_api_error())


@_extending.infer_getattr
class _Names(_AttributeTemplate):  # type: ignore[misc]
    key = Handed

    def generic_resolve(self, kind: Handed, name: str) -> Any:
        return kind.at[name][1] if name in kind.at else None


@_extending.lower_getattr_generic(Handed)
def _read(context: Any, builder: Any, kind: Handed, table: Any, name: str) -> Any:
    """What stands under a name."""
    first, wanted = kind.at[name]
    words = builder.bitcast(table, ir.IntType(64).as_pointer())

    def pointer(at: int) -> Any:
        address = builder.bitcast(builder.gep(words, [_word(at)]), ir.IntType(8).as_pointer().as_pointer())
        return _once(builder, address, "nonnull")

    if isinstance(wanted, Handed):
        return builder.bitcast(builder.gep(words, [_word(first)]), table.type)
    if not isinstance(wanted, types.Array):
        function = context.make_helper(builder, wanted)
        function.c_addr = pointer(first)
        function.py_addr = function.jit_addr = function.c_addr.type(None)
        return function._getvalue()
    array = context.make_array(wanted)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(wanted.dtype))
    lengths = [_once(builder, builder.gep(words, [_word(first + 1 + k)])) for k in range(wanted.ndim)]
    strides = [_word(size)]
    for length in lengths[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.bitcast(pointer(first), array.data.type)
    _populate(array, data, lengths, strides, size, meminfo=None)
    return array._getvalue()


def _word(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _once(builder: Any, address: Any, *also: str) -> Any:
    """Reads a word that nobody writes."""
    word = builder.load(address)
    for fact in ("invariant.load", *also):
        word.set_metadata(fact, builder.module.add_metadata([]))
    return word
