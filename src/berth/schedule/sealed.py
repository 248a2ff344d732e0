"""Job records as a policy's functions see them: read-only, but for the fields that a hook may update.

Compiled hooks get a type of their own: an attribute that a policy has no business with does not exist in it,
an array can't be written, and only the writable fields can be assigned. That is decided while compiling, so
it costs nothing at run time and no alias gets around it. Interpreted hooks get `View`, which answers alike.
"""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.core.typing import templates
from numba.np import arrayobj

from berth.errors import nearest
from berth.schedule.elements import Elements, elements_of
from berth.schedule.records import INTERNAL_FIELDS, JOB, POLICY_FIELDS, RENAMED, WAIT_STATS

_extending: Any = extending  # numba is untyped
_AttributeTemplate: Any = templates.AttributeTemplate
_arrays: Any = arrayobj
_cgutils: Any = cgutils
_types: Any = types

WRITABLE = ("queue", "notes")  # what `order`, and no other hook, may update
READABLE: dict[str, tuple[str, ...]] = {
    "job": POLICY_FIELDS,
    "stats": WAIT_STATS.names or (),
}


class Sealed(types.Type):
    """The type of a record of which compiled code writes the fields in `writable` and no others."""

    def __init__(self, record: Any, writable: tuple[str, ...], own: bool) -> None:
        self.record, self.writable, self.own = record, writable, own
        digest = hashlib.sha256(f"{record} {writable} {own}".encode()).hexdigest()[:16]
        super().__init__(f"Sealed.{digest}")

    @cached_property
    def at(self) -> dict[str, Any]:
        """The type of each field that can be read."""
        return {name: self._field(name) for name in self.record.fields if name not in INTERNAL_FIELDS}

    def _field(self, name: str) -> Any:
        kind = self.record.typeof(name)
        if isinstance(kind, _types.NestedArray):
            return _array(self.own)(kind.dtype, kind.ndim, "C", readonly=name not in self.writable)
        return kind


@_extending.register_model(Sealed)
class _Pointer(extending.models.OpaqueModel):
    """The record's address."""


@_extending.infer_getattr
class _Fields(_AttributeTemplate):  # type: ignore[misc]
    key = Sealed

    def generic_resolve(self, kind: Sealed, name: str) -> Any:
        return kind.at.get(name)


def _member(context: Any, builder: Any, kind: Sealed, record: Any, name: str, of: Any) -> Any:
    bytes_ = builder.bitcast(record, ir.ArrayType(ir.IntType(8), kind.record.size).as_pointer())
    return _cgutils.get_record_member(builder, bytes_, kind.record.offset(name), context.get_data_type(of))


@_extending.lower_getattr_generic(Sealed)
def _read(context: Any, builder: Any, kind: Sealed, record: Any, name: str) -> Any:
    wanted = kind.at[name]
    if not isinstance(wanted, _types.Array):
        return context.unpack_value(builder, wanted, _member(context, builder, kind, record, name, wanted))
    stored = kind.record.typeof(name)
    array = _arrays.make_array(wanted)(context, builder)
    _arrays.populate_array(
        array,
        data=_member(context, builder, kind, record, name, stored.dtype),
        shape=_cgutils.pack_array(builder, [_size(length) for length in stored.shape]),
        strides=_cgutils.pack_array(builder, [_size(stride) for stride in stored.strides]),
        itemsize=_size(np.dtype(str(stored.dtype)).itemsize),
        meminfo=None,
        parent=None,
    )
    return array._getvalue()


def _size(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


@_extending.lower_setattr_generic(Sealed)
def _write(context: Any, builder: Any, signature: Any, arguments: Any, name: str) -> None:
    (kind, given), (record, value) = signature.args, arguments
    wanted = kind.at[name]
    if name not in kind.writable or isinstance(wanted, _types.Array):
        raise NotImplementedError(f"a policy may not write job.{name}")
    value = context.cast(builder, value, given, wanted)
    context.pack_value(builder, wanted, value, _member(context, builder, kind, record, name, wanted))


def _array(own: bool) -> Any:
    """The type of arrays: a user's hooks get one that refuses negative indices."""
    return Elements if own else _types.Array


@cache
def sealing(writable: tuple[str, ...], own: bool) -> Any:
    """What seals a record for a hook; `own`: for one of the user's."""

    @_extending.intrinsic
    def seal(typing: Any, record: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.IntType(8).as_pointer())

        return Sealed(record, writable, own)(record), generate

    return seal


@cache
def array_sealing(own: bool) -> Any:
    """What makes an array read-only."""

    @_extending.intrinsic
    def seal(typing: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            given = _arrays.make_array(signature.args[0])(context, builder, arguments[0])
            result = _arrays.make_array(signature.return_type)(context, builder)
            _cgutils.copy_struct(result, given)
            return result._getvalue()

        return _array(own)(array.dtype, array.ndim, "C", readonly=True)(array), generate

    return seal


@_extending.intrinsic
def keep(typing: Any, words: Any, record: Any) -> Any:
    """Copies a record, byte for byte, into an array of words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = _arrays.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = ir.IntType(8).as_pointer()
        to, source = builder.bitcast(target.data, pointer), builder.bitcast(arguments[1], pointer)
        _cgutils.raw_memcpy(builder, to, source, _size(record.size), 1)
        return context.get_dummy_value()

    return _types.void(words, record), generate


class View:
    """A record for interpreted hooks: its fields are attributes, and only the writable ones can be set."""

    __slots__ = ("_record", "_what", "_writable")

    def __init__(self, record: Any, writable: tuple[str, ...]) -> None:
        what = "job" if record.dtype == JOB else "stats"
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_what", what)
        object.__setattr__(self, "_writable", writable)

    def __getattr__(self, name: str) -> Any:
        if name not in READABLE[self._what]:
            raise AttributeError(unknown_field(self._what, name))
        value = self._record[name]
        if not isinstance(value, np.ndarray):
            return value.item()
        numbers = elements_of(value, f"{self._what}.{name}")
        numbers.flags.writeable = name in self._writable
        return numbers

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in READABLE[self._what]:
            raise AttributeError(unknown_field(self._what, name))
        if name not in self._writable:
            raise AttributeError(not_writable(self._what, name))
        self._record[name] = value


def unknown_field(what: str, name: str) -> str:
    """What to say about a field that a policy can't read."""
    if what == "job" and name in INTERNAL_FIELDS:
        return f"{what}.{name} is not for policies: how long a job really takes, only the simulator knows"
    near = RENAMED.get(name) or nearest(name, READABLE[what])
    return f"{what} has no field {name!r}" + (f"; did you mean {near!r}?" if near else "")


def not_writable(what: str, name: str) -> str:
    """What to say about a field that a policy can't write."""
    if what == "job" and name in WRITABLE:
        return f"{what}.{name} may be updated by the hook `order` only"
    return f"{what}.{name} may not be written: a policy updates job.queue and job.notes, in `order`"
