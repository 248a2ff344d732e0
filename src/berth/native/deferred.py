"""Kernels that are compiled when compiled code first reaches them.

    @deferred
    def choose(world: World, row: int, now: float) -> tuple[int, int]: ...

Compiled code calls such a kernel by its name. The call reads the kernel's address from a cell in memory. While the cell
is empty the kernel is compiled, or read from disk, in the middle of the run. So what no job of a run asks for is not
compiled, and what several phases call is compiled once. A call costs what one by address costs: the kernel should
not be one that is called in the innermost loops. While a kernel is compiled other Python threads run.

Python raises KeyboardInterrupt in the main thread only, wherever that is. numba does not survive it, so kernels are
compiled in a thread of their own.

Arguments and results have the types of the annotations: numbers, named tuples that were passed to `to_native`, tuples
of numbers as results.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import binding, ir
from numba import extending, types

from berth.native.cache import cache_folder
from berth.native.interrupts import raise_in_caller
from berth.native.kernels import COMPILER_LOCK, FunctionPointer, IndirectKernel, Signature
from berth.native.structs import NativeStructType, register_type, require_one_type, type_named

F = TypeVar("F", bound=Callable[..., Any])
_extending: Any = extending  # numba is untyped
_types: Any = types
_binding: Any = binding

# by name: code that is read from disk finds it wherever it is in this process
_COMPILE = "berth_compile_deferred"
_SCALARS = {"int": types.int64, "float": types.float64, "bool": types.boolean, "None": types.void}
_POINTER = ir.IntType(8).as_pointer()

_by_cell: dict[int, DeferredKernel] = {}


def deferred(function: F) -> F:
    """A compiled function that compiled functions call, and that is compiled when the first of them does."""
    return cast(F, DeferredKernel(function).callable)


def deferred_kernels() -> dict[str, DeferredKernel]:
    """All deferred kernels, by module and name; the `pointer` of those that no run has reached is None."""
    return {kernel.name: kernel for kernel in _by_cell.values()}


class DeferredKernel:
    """One deferred kernel: its cell, and what compiled code calls it by."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func, self.name = function, f"{function.__module__}.{function.__qualname__}"
        self.pointer: FunctionPointer | None = None
        self._cell = np.zeros(1, np.int64)  # the address, or 0
        self._symbol = f"berth_deferred.{self.name}"
        _binding.add_symbol(self._symbol, self._cell.ctypes.data)
        _by_cell[self._cell.ctypes.data] = self
        self._arguments = list(inspect.signature(function).parameters)
        for argument in self._arguments:
            if function.__annotations__[argument] not in _SCALARS:
                require_one_type(function.__annotations__[argument])
        self.callable = self._intrinsic()

    def compile(self) -> None:
        """Compiles the kernel, or reads it from disk, and stores its address."""
        self.compile_for(self._type("return")(*map(self._type, self._arguments)))

    def compile_for(self, signature: Signature) -> None:
        """The same for a signature, where no named tuple has been passed to compiled code yet."""
        with COMPILER_LOCK:
            if self.pointer is None:
                for argument in signature.args:
                    if isinstance(argument, NativeStructType):
                        register_type(argument)
                pointer = IndirectKernel(self.py_func).pointer(signature)
                self._cell[0] = pointer.__wrapper_address__()
                self.pointer = pointer  # last: without the lock, it says that the cell is filled

    def _type(self, argument: str) -> Any:
        text = self.py_func.__annotations__[argument]
        if text.startswith("tuple["):
            return _types.Tuple([_SCALARS[part.strip()] for part in text[6:-1].split(",")])
        return _SCALARS[text] if text in _SCALARS else type_named(text)

    def _intrinsic(self) -> Any:
        def call(context: Any, *given: Any) -> Any:
            signature = self._type("return")(*map(self._type, self._arguments))
            for type_, wanted in zip(given, signature.args, strict=True):
                if not _fits(type_, wanted):
                    return None
            return signature, self._generate

        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self._arguments
        ]
        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__name__ = self.py_func.__name__
        call.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        return _extending.intrinsic(call)

    def _generate(self, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """The call: by the address in the cell, as soon as there is one."""
        cell = builder.module.globals.get(self._symbol)
        cell = cell or ir.GlobalVariable(builder.module, _POINTER, self._symbol)
        values = [context.get_value_type(type_) for type_ in signature.args]
        kind = ir.FunctionType(context.get_value_type(signature.return_type), values)
        check, compile_, ready = (
            builder.append_basic_block(f"deferred.{name}") for name in ("check", "compile", "ready")
        )
        builder.branch(check)
        builder.position_at_end(check)  # again after each attempt: an interrupt may end one early
        address = builder.load(cell)
        is_empty = builder.icmp_unsigned("==", address, _POINTER(None))
        builder.cbranch(is_empty, compile_, ready).set_weights([1, 99])
        builder.position_at_end(compile_)
        builder.call(_compiling(builder.module), [builder.bitcast(cell, _POINTER)])
        builder.branch(check)
        builder.position_at_end(ready)
        return builder.call(builder.bitcast(address, kind.as_pointer()), arguments)


def _fits(given: Any, wanted: Any) -> bool:
    """Whether an argument has the type of its annotation; numba would cut off the decimals of a number."""
    given = _types.unliteral(given)
    if wanted in (types.int64, types.boolean):
        return isinstance(given, _types.Integer | _types.Boolean | _types.IntEnumMember)
    if wanted == types.float64:
        return isinstance(given, _types.Float | _types.Integer)
    return bool(given == wanted)


def _compiling(module: Any) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [_POINTER])
    return module.globals.get(_COMPILE) or ir.Function(module, kind, _COMPILE)


def _compile(cell: int) -> None:
    """Compiles a kernel, called by compiled code that needs it now, and calls again if the cell is still empty then."""
    try:
        thread = threading.Thread(target=_compile_or_abort, args=(_by_cell[cell],), daemon=True)
        thread.start()
        thread.join()
    except KeyboardInterrupt:
        raise_in_caller(sys._getframe())


def _compile_or_abort(kernel: DeferredKernel) -> None:
    """Compiles a kernel: nothing may pass through the compiled code that needs it, and it can't go on without."""
    try:
        kernel.compile()
    except BaseException:  # noqa: BLE001 - the process ends
        traceback.print_exc()
        print(
            f"berth: {kernel.name} can't be compiled (compiled code is in {cache_folder()})", file=sys.stderr
        )
        os.abort()


_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_compile)
_binding.add_symbol(_COMPILE, ctypes.cast(_callback, ctypes.c_void_p).value)
