"""Arrays of a job's record whose elements are counted from 0: a negative index is refused, not wrapped round.

`job.slow[job.tier]` while a job waits (its tier is -1) would give the last tier's number in silence. A user's
compiled hooks get arrays of the type `Elements`, interpreted ones `ElementsView`; both refuse alike.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numba import extending, types
from numba.core import imputils
from numba.core.datamodel import models
from numba.core.typing import templates
from numba.np import arrayobj

_extending: Any = extending  # numba is untyped
_lower: Any = imputils.lower_builtin
_arrays: Any = arrayobj
_models: Any = models
_signature: Any = templates.signature
_types: Any = types


class Elements(_types.Array):  # type: ignore[misc]
    """The type of such an array, and of its slices."""

    def __init__(self, dtype: Any, ndim: int, layout: str, readonly: bool) -> None:
        access = "readonly" if readonly else "mutable"
        name = f"elements({dtype}, {ndim}d, {layout}, {access})"
        super().__init__(dtype, ndim, layout, readonly=readonly, name=name)

    def copy(
        self, dtype: Any = None, ndim: Any = None, layout: Any = None, readonly: bool | None = None
    ) -> Any:
        """The type of a slice (numba asks for it so); what holds numbers of its own is an ordinary array."""
        if dtype is not None or readonly is not None:
            return super().copy(dtype, ndim, layout, readonly)
        return Elements(self.dtype, ndim or self.ndim, layout or self.layout, not self.mutable)


_extending.register_model(Elements)(_models.ArrayModel)


@_lower(operator.getitem, Elements, _types.Integer)
def _read(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """An index without a sign is never wrapped: below 0 it is out of bounds."""
    unsigned = _signature(signature.return_type, signature.args[0], _types.uintp)
    return _arrays.getitem_arraynd_intp(context, builder, unsigned, arguments)


@_lower(operator.setitem, Elements, _types.Integer, _types.Any)
def _write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array, _, value = signature.args
    unsigned = _signature(signature.return_type, array, _types.uintp, value)
    return _arrays.setitem_array(context, builder, unsigned, arguments)


@_lower(operator.getitem, Elements, _types.SliceType)
def _slice(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    if signature.args[1].has_step:
        raise NotImplementedError("a slice of a job's array with a step is not compiled")
    bounds = context.make_helper(builder, signature.args[1], arguments[1])
    for bound in (bounds.start, bounds.stop):
        negative = builder.icmp_signed("<", bound, bound.type(0))
        with builder.if_then(negative, likely=False):
            context.call_conv.return_user_exc(builder, IndexError, ("negative index",))
    return _arrays.getitem_arraynd_intp(context, builder, signature, arguments)


@_lower(operator.getitem, Elements, _types.BaseTuple)
@_lower(operator.getitem, Elements, _types.Array)
@_lower(operator.setitem, Elements, _types.SliceType, _types.Any)
@_lower(operator.setitem, Elements, _types.BaseTuple, _types.Any)
@_lower(operator.setitem, Elements, _types.Array, _types.Any)
def _refuse(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    raise NotImplementedError("a job's array is indexed by one whole number")


class ElementsView(np.ndarray[Any, Any]):
    """Such an array for interpreted hooks; its items are Python's own numbers, as compiled code has them."""

    of = ""  # job.slow, say; "": an array that was computed from one

    def __getitem__(self, at: Any) -> Any:
        if self.of:
            self._check(at)
        item = super().__getitem__(at)
        if isinstance(item, ElementsView) and isinstance(at, slice):
            item.of = self.of
        return item.item() if isinstance(item, np.generic) else item

    def __setitem__(self, at: Any, value: Any) -> None:
        if self.of:
            self._check(at)
        super().__setitem__(at, value)

    def _check(self, at: Any) -> None:
        if isinstance(at, slice):
            wrong = [bound for bound in (at.start, at.stop) if bound is not None and bound < 0]
        elif isinstance(at, int | np.integer):
            wrong = [] if 0 <= at < len(self) else [at]
        else:
            raise TypeError(f"{self.of} is indexed by one whole number, not by {at!r}")
        if wrong:
            raise IndexError(out_of_bounds(self.of, int(wrong[0]), len(self)))


def out_of_bounds(of: str, index: int, length: int) -> str:
    """What to say about an index."""
    text = f"{of}[{index}] is out of bounds: it has {length} entries, 0 to {length - 1}"
    return f"{text}; check it first (job.tier is -1 while a job waits)" if index == -1 else text


def elements_of(array: Any, of: str) -> Any:
    """An array as interpreted hooks see it."""
    view = array.view(ElementsView)
    view.of = of
    return view
