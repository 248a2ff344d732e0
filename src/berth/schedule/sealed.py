"""Records as a policy's functions see them: read-only, but for what `update` may write.

Compiled hooks get a type of their own: an attribute that a policy has no business with does not exist in it,
an array can't be written, and only the policy's own fields can be assigned, in `update`. That is decided while
compiling, so it costs nothing at run time and no alias gets around it. Interpreted hooks get `View`, which answers
alike. The fields that a policy declares in its `Job` are slots of `policy_state`, by their order.
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
from berth.schedule.records import CLUSTER, INTERNAL_FIELDS, JOB, POLICY_FIELDS, RENAMED, WAIT_STATS

_extending: Any = extending  # numba is untyped
_AttributeTemplate: Any = templates.AttributeTemplate
_arrays: Any = arrayobj
_cgutils: Any = cgutils
_types: Any = types

State = tuple[tuple[str, type], ...]  # the policy's own fields of a job, int or float, by slot
READABLE: dict[str, tuple[str, ...]] = {
    "job": POLICY_FIELDS,
    "stats": WAIT_STATS.names or (),
    "cluster": CLUSTER.names or (),
}
_STATE = "policy_state"
_OLD_STATE = ("queue", "notes")  # where policies of earlier versions kept what they remembered


class Sealed(types.Type):
    """The type of a record of which compiled code writes the policy's own fields, if any."""

    def __init__(self, record: Any, state: State, writable: bool, own: bool) -> None:
        self.record, self.writable, self.own = record, writable, own
        self.slots = {name: slot for slot, (name, _) in enumerate(state)} if _STATE in record.fields else {}
        self.state = {name: _types.int64 if kind is int else _types.float64 for name, kind in state}
        digest = hashlib.sha256(f"{record} {state} {writable} {own}".encode()).hexdigest()[:16]
        super().__init__(f"Sealed.{digest}")

    @cached_property
    def at(self) -> dict[str, Any]:
        """The type of each field that can be read."""
        fields = {name: self._field(name) for name in self.record.fields if name not in INTERNAL_FIELDS}
        return fields | {name: self.state[name] for name in self.slots}

    def _field(self, name: str) -> Any:
        kind = self.record.typeof(name)
        if isinstance(kind, _types.NestedArray):
            return _array(self.own)(kind.dtype, kind.ndim, "C", readonly=True)
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
    if name in kind.slots:
        stored = builder.load(_slot(context, builder, kind, record, name))
        return context.cast(builder, stored, _types.float64, wanted)
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


def _slot(context: Any, builder: Any, kind: Sealed, record: Any, name: str) -> Any:
    """Where a field of the policy's own is stored, as a float."""
    first = _member(context, builder, kind, record, _STATE, _types.float64)
    return builder.gep(first, [_size(kind.slots[name])])


def _size(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


@_extending.lower_setattr_generic(Sealed)
def _write(context: Any, builder: Any, signature: Any, arguments: Any, name: str) -> None:
    (kind, given), (record, value) = signature.args, arguments
    if name not in kind.slots or not kind.writable:
        raise NotImplementedError(f"a policy may not write job.{name}")
    wanted = kind.at[name]
    value = context.cast(builder, context.cast(builder, value, given, wanted), wanted, _types.float64)
    builder.store(value, _slot(context, builder, kind, record, name))


def _array(own: bool) -> Any:
    """The type of arrays: a user's hooks get one that refuses negative indices."""
    return Elements if own else _types.Array


@cache
def sealing(state: State, writable: bool, own: bool) -> Any:
    """What seals a record for a hook; `own`: for one of the user's."""

    @_extending.intrinsic
    def seal(typing: Any, record: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], ir.IntType(8).as_pointer())

        return Sealed(record, state, writable, own)(record), generate

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
    """A record for interpreted hooks: its fields are attributes, and only the policy's own can be set."""

    __slots__ = ("_record", "_state", "_what", "_writable")

    def __init__(self, record: Any, state: State = (), writable: bool = False) -> None:
        names = {JOB: "job", WAIT_STATS: "stats", CLUSTER: "cluster"}
        what = names[record.dtype]
        own = {name: (slot, kind) for slot, (name, kind) in enumerate(state)} if what == "job" else {}
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_what", what)
        object.__setattr__(self, "_state", own)
        object.__setattr__(self, "_writable", writable)

    def __getattr__(self, name: str) -> Any:
        if name in self._state:
            slot, kind = self._state[name]
            return kind(self._record[_STATE][slot])
        if name not in READABLE[self._what]:
            raise AttributeError(unknown_field(self._what, name))
        value = self._record[name]
        if not isinstance(value, np.ndarray):
            return value.item()
        numbers = elements_of(value, f"{self._what}.{name}")
        numbers.flags.writeable = False
        return numbers

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._state and name not in READABLE[self._what]:
            raise AttributeError(unknown_field(self._what, name))
        if name not in self._state or not self._writable:
            raise AttributeError(not_writable(self._what, name, name in self._state))
        slot, kind = self._state[name]
        self._record[_STATE][slot] = kind(value)


def unknown_field(what: str, name: str) -> str:
    """What to say about a field that a policy can't read."""
    if what == "job" and name in INTERNAL_FIELDS:
        return f"{what}.{name} is not for policies: how long a job really takes, only the simulator knows"
    if what == "job" and name in _OLD_STATE:
        return f"job has no field {name!r}; declare it in `class Job(JobView)`, and set it in `update`"
    near = RENAMED.get(name) or nearest(name, READABLE[what])
    return f"{what} has no field {name!r}" + (f"; did you mean {near!r}?" if near else "")


def not_writable(what: str, name: str, declared: bool = False) -> str:
    """What to say about a field that a policy can't write here; `declared`: in its `Job`."""
    if declared:
        return f"{what}.{name} may be written by the hook `update` only"
    return f"{what}.{name} may not be written: only `update` writes, and only fields of the policy's `Job`"
