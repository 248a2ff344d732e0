"""Decorators for compiled functions, one for each way in which a function is called.

    @kernel       compiled code calls it by name; LLVM decides whether to inline it
    @inlined      the same, always inlined: for short functions in hot loops
    @compilable   the same for a function that stays a plain Python function for Python
    @indirect     compiled code calls it by its address; it is compiled on its own, and only when it is needed
    @entry        Python calls it
    @deferred     compiled code calls it by name; it is compiled when a run first reaches it, see deferred.py

All but `indirect` return a callable with the signature of the decorated function. A version of it is compiled for the
argument types of the first call. Indirect functions and entries are read from disk where an earlier run compiled
them (cache.py); they contain the other kinds, which are compiled as a part of them (linking.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import extending, types
from numba.core import sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.experimental import function_type as _function_type  # noqa: F401 - the type of a FunctionPointer

from berth.errors import InputError
from berth.native.cache import enable_cache
from berth.native.linking import InnerCompiler, OuterCompiler

F = TypeVar("F", bound=Callable[..., Any])
Signature = Any  # a signature as numba writes it, such as `types.float64(types.int64)`
NumbaType = Any  # numba is untyped
_njit: Any = numba.njit
_typeof: Any = numba.typeof
_types: Any = types
_normalize: Any = sigutils.normalize_signature
_register_jitable: Any = extending.register_jitable

# numba's own, re-entrant: one thread at a time compiles or loads code
COMPILER_LOCK: Any = global_compiler_lock
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}


def kernel(function: F) -> F:
    """A compiled function that only compiled functions call."""
    return _inner(function)


def inlined(function: F) -> F:
    """A short function that is inlined where compiled code calls it."""
    return _inner(function, forceinline=True)


def compilable(function: F) -> F:
    """A plain Python function that compiled functions may call, too: they compile it as a kernel."""
    return cast(F, _register_jitable(**_INNER)(function))


def entry(function: F) -> F:
    """A compiled function that Python calls."""
    return _outer(function)


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

    def pointer(self, signature: Signature) -> FunctionPointer:
        """The function for a signature, compiled or read from disk on the first request."""
        with COMPILER_LOCK:
            if signature not in self._pointers:
                dispatcher = _dispatcher(_outer(self.py_func, no_cpython_wrapper=True))
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
    signature, dispatcher = types_of(*arguments), _dispatcher(function)
    dispatcher.compile(signature)
    return cast(Callable[..., Any], dispatcher.overloads[signature].entry_point)


def _dispatcher(function: Callable[..., Any]) -> Any:
    if not isinstance(function, Dispatcher):
        raise InputError("NUMBA_DISABLE_JIT is set: the simulator runs compiled only", hint="unset it")
    return function


def _inner(function: F, **options: Any) -> F:
    dispatcher = _njit(**_INNER, **options)(function)
    if isinstance(dispatcher, Dispatcher):  # not where NUMBA_DISABLE_JIT is set
        _widen_arguments(dispatcher)
        _compile_untimed(dispatcher)
    return cast(F, dispatcher)


def _outer(function: F, **options: Any) -> F:
    dispatcher = _njit(pipeline_class=OuterCompiler, **options)(function)
    if isinstance(dispatcher, Dispatcher):
        enable_cache(dispatcher)
    return cast(F, dispatcher)


def _widen_arguments(dispatcher: Any) -> None:
    """Passes signed integers and members of an IntEnum as int64, so that one version serves all callers."""
    template = dispatcher.get_call_template

    def widened(arguments: Any, keywords: Any) -> Any:
        by_name = {name: _widened(argument) for name, argument in keywords.items()}
        return template(tuple(map(_widened, arguments)), by_name)

    dispatcher.get_call_template = widened


def _widened(type_: NumbaType) -> NumbaType:
    type_ = _types.unliteral(type_)
    integer = isinstance(type_, _types.IntEnumMember) or (isinstance(type_, _types.Integer) and type_.signed)
    return _types.int64 if integer else type_


def _compile_untimed(dispatcher: Any) -> None:
    """Compiles without timers: each listens to every call of LLVM until the functions that it calls are compiled."""

    def compile_(signature: Signature) -> Any:
        arguments, return_type = _normalize(signature)
        with COMPILER_LOCK, dispatcher._compiling_counter:
            if arguments not in dispatcher.overloads:
                dispatcher.add_overload(dispatcher._compiler.compile(arguments, return_type))
            return dispatcher.overloads[arguments].entry_point

    dispatcher.compile = compile_
