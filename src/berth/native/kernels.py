"""Decorators for compiled functions, one for each way in which a function is called.

    @kernel     compiled code calls it by name; LLVM decides whether to inline it
    @inlined    the same, always inlined: for short functions in hot loops
    @indirect   compiled code calls it by its address; it is compiled on its own, and only when it is needed
    @entry      Python calls it

Each of the first two and the last returns a callable with the signature of the decorated function. It compiles a
version of itself for the argument types of its first call, or reads it from disk (cache.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numba
from numba import types
from numba.core.dispatcher import Dispatcher

from berth.native.cache import enable_cache

F = TypeVar("F", bound=Callable[..., Any])
Signature = Any  # a signature as numba writes it, such as `types.float64(types.int64)`
NumbaType = Any  # numba is untyped
_njit: Any = numba.njit
_typeof: Any = numba.typeof

_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Specializable(Protocol):
    """What an entry offers beside being called: versions for given argument types."""

    overloads: dict[tuple[NumbaType, ...], Any]

    def compile(self, signature: Any) -> Any:
        """Compiles one version, or reads it from disk."""


def kernel(function: F) -> F:
    """A compiled function that only compiled functions call."""
    return _jit(function, **_INNER)


def inlined(function: F) -> F:
    """A short function that is inlined where compiled code calls it."""
    return _jit(function, forceinline=True, **_INNER)


def entry(function: F) -> F:
    """A compiled function that Python calls."""
    return _jit(function)


def indirect(function: Callable[..., Any]) -> IndirectKernel:
    """A compiled function that compiled functions call by its address."""
    return IndirectKernel(function)


class FunctionPointer(types.WrapperAddressProtocol):
    """The address of a function with its signature: compiled code calls it without knowing which function it is."""

    def __init__(self, address: int, signature: Signature, owner: object) -> None:
        self._address, self._signature = address, signature
        self._owner = owner  # keeps the code in memory

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Signature:
        """The types of its arguments and of its result."""
        return self._signature


class IndirectKernel:
    """A compiled function that compiled functions call by its address.

    A compiled function contains those it calls by name, and LLVM optimizes them again with it: the whole engine in
    one piece takes minutes to compile. These are compiled separately, and only those that a run needs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._pointers: dict[Signature, FunctionPointer] = {}
        self._lock = threading.Lock()

    def pointer(self, signature: Signature) -> FunctionPointer:
        """The function for a signature, compiled or read from disk on the first request."""
        with self._lock:
            if signature not in self._pointers:
                dispatcher: Any = _jit(self.py_func, no_cpython_wrapper=True)
                dispatcher.compile(signature)
                self._pointers[signature] = pointer_to(dispatcher.overloads[signature.args], signature)
            return self._pointers[signature]


def pointer_to(compiled: Any, signature: Signature) -> FunctionPointer:
    """The address of what numba compiled for a signature."""
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    return FunctionPointer(address, signature, compiled)


def types_of(*values: object) -> tuple[NumbaType, ...]:
    """The types under which compiled code knows these values."""
    return tuple(_typeof(value) for value in values)


def specialize(function: Callable[..., Any], *arguments: object) -> Callable[..., Any]:
    """An entry for arguments of exactly these types: a call skips the dispatch on types."""
    signature, dispatcher = types_of(*arguments), cast(Specializable, function)
    dispatcher.compile(signature)
    return cast(Callable[..., Any], dispatcher.overloads[signature].entry_point)


def _jit(function: F, **options: bool) -> F:
    dispatcher = _njit(**options)(function)
    if isinstance(dispatcher, Dispatcher):  # not where NUMBA_DISABLE_JIT is set
        enable_cache(dispatcher)
    return cast(F, dispatcher)
