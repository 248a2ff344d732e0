"""Named tuples of arrays and functions that compiled code receives as one pointer.

Compiled code copies a whole tuple to pass it to a function, and counts references to each array that it reads from
it: for a world of a dozen arrays that is most of the running time and of the compile time. `to_native` writes a tuple
once into a struct of addresses and lengths. Compiled code passes the address of the struct, reads fields by the
tuple's own names, and counts no references: the caller keeps the arrays alive. Compiled code never writes to the
struct, so LLVM may reuse what it has read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
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


class NativeStructType(types.Type):
    """The numba type of a struct: the name and type of each field."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any], ...]) -> None:
        self.tuple_name, self.fields = name, fields
        # short, since the types of its arguments are part of the name of every compiled function
        super().__init__(f"{name}.{hashlib.sha256(repr(fields).encode()).hexdigest()[:16]}")

    @cached_property
    def at(self) -> dict[str, tuple[int, Any]]:
        """By field: the index of its first word in the struct, and its type."""
        found, words = {}, 0
        for name, field in self.fields:
            found[name] = words, field
            words += _words(field)
        return found


def _words(field: Any) -> int:
    """The size of a field: an address for a function, the data's address and the shape for an array."""
    if isinstance(field, NativeStructType):
        return sum(_words(part) for _, part in field.fields)
    return 1 + field.ndim if isinstance(field, types.Array) else 1


class NativeStruct:
    """A named tuple as compiled code reads it; keeps the tuple's arrays and functions alive."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.type = _type_of(values)
        self._words = np.array(list(_words_of(values)), np.int64)
        self.address = int(self._words.ctypes.data)


def to_native(values: T) -> T:
    """A named tuple of arrays, functions and other such tuples, as a struct for compiled code.

    The annotated type is that of the tuple, since compiled functions read the struct by the tuple's fields.
    """
    return cast(T, NativeStruct(values))


def _type_of(values: Any) -> NativeStructType:
    fields = zip(values._fields, values, strict=True)
    types_ = ((name, _type_of(part) if isinstance(part, tuple) else _typeof(part)) for name, part in fields)
    return _struct_type(type(values).__name__, tuple(types_))


@cache
def _struct_type(name: str, fields: tuple[tuple[str, Any], ...]) -> NativeStructType:
    made = NativeStructType(name, fields)  # cached, since hashing the fields takes long
    register_type(made)
    return made


_by_name: dict[str, NativeStructType] = {}  # the first type of each name
_one_type: set[str] = set()  # names that may have only one


def require_one_type(name: str) -> None:
    """Lets all named tuples of a name have the same type in this process."""
    _one_type.add(name)


def register_type(type_: NativeStructType) -> None:
    """Stores the first type of a name; raises TypeError for another one where there may be only one."""
    if _by_name.setdefault(type_.tuple_name, type_) != type_ and type_.tuple_name in _one_type:
        raise TypeError(f"{type_.tuple_name} has two types")


def type_named(name: str) -> NativeStructType:
    """The first type of the named tuples of a name."""
    return _by_name[name]


def _words_of(values: tuple[Any, ...]) -> Iterator[int]:
    for value in values:
        if isinstance(value, tuple):
            yield from _words_of(value)
        elif isinstance(value, np.ndarray):
            assert value.flags.c_contiguous, "an array in a native struct must be contiguous"
            yield from (value.ctypes.data, *value.shape)
        else:
            yield value.__wrapper_address__()


@_extending.typeof_impl.register(NativeStruct)
def _typeof_struct(struct: NativeStruct, context: Any) -> NativeStructType:
    return struct.type


@_extending.register_model(NativeStructType)
class _Pointer(extending.models.OpaqueModel):
    """The address of the struct."""


@_extending.unbox(NativeStructType)
def _unbox(type_: NativeStructType, struct: Any, to: Any) -> Any:
    address = to.pyapi.object_getattr_string(struct, "address")
    pointer = to.pyapi.long_as_voidptr(address)
    to.pyapi.decref(address)
    return _extending.NativeValue(pointer, is_error=to.pyapi.c_api_error())


@_extending.infer_getattr
class _Fields(_AttributeTemplate):  # type: ignore[misc]
    key = NativeStructType

    def generic_resolve(self, type_: NativeStructType, name: str) -> Any:
        return type_.at[name][1] if name in type_.at else None


@_extending.lower_getattr_generic(NativeStructType)
def _read(context: Any, builder: Any, type_: NativeStructType, struct: Any, name: str) -> Any:
    """Reads a field."""
    first, field = type_.at[name]
    words = builder.bitcast(struct, ir.IntType(64).as_pointer())

    def pointer(at: int) -> Any:
        address = builder.bitcast(builder.gep(words, [_word(at)]), ir.IntType(8).as_pointer().as_pointer())
        return _load_constant(builder, address, "nonnull")

    if isinstance(field, NativeStructType):
        return builder.bitcast(builder.gep(words, [_word(first)]), struct.type)
    if not isinstance(field, types.Array):
        function = context.make_helper(builder, field)
        function.c_addr = pointer(first)
        function.py_addr = function.jit_addr = function.c_addr.type(None)
        return function._getvalue()
    array = context.make_array(field)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(field.dtype))
    lengths = [_load_constant(builder, builder.gep(words, [_word(first + 1 + k)])) for k in range(field.ndim)]
    strides = [_word(size)]
    for length in lengths[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    data = builder.bitcast(pointer(first), array.data.type)
    _populate(array, data, lengths, strides, size, meminfo=None)
    return array._getvalue()


def _word(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _load_constant(builder: Any, address: Any, *facts: str) -> Any:
    """Reads a word that is never written."""
    word = builder.load(address)
    for fact in ("invariant.load", *facts):
        word.set_metadata(fact, builder.module.add_metadata([]))
    return word
