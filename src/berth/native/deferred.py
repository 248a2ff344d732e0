"""Kernels that are compiled when compiled code first reaches them.

    @deferred
    def choose(world: World, row: int, now: float) -> tuple[int, int]: ...

Compiled code calls such a kernel by its name. The call reads the kernel's address from a cell in memory. While the cell
is empty the kernel is compiled, or read from disk, in the middle of the run. So what no job of a run asks for is not
compiled, and what several phases call is compiled once. A call costs what one by address costs: the kernel should
not be one that is called in the innermost loops.

Arguments and results have the types of the annotations: numbers, named tuples that were passed to `to_native`, tuples
of numbers as results.
"""

from __future__ import annotations

import _thread
import ctypes
import inspect
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import binding, ir
from numba import extending, types

from berth.native.kernels import COMPILER_LOCK, FunctionPointer, IndirectKernel, Signature
from berth.native.structs import NativeStructType, is_the_type, rely_on, the_type_of

F = TypeVar("F", bound=Callable[..., Any])
_extending: Any = extending  # numba is untyped
_types: Any = types
_binding: Any = binding

_COMPILE = (
    "berth_compile_deferred"  # by name: code that is read from disk finds it wherever it is in this process
)
_SCALARS = {"int": types.int64, "float": types.float64, "bool": types.boolean, "None": types.void}
_SOON_S = 0.05
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
                rely_on(function.__annotations__[argument])
        self.callable = self._intrinsic()

    def compile(self) -> None:
        """Compiles the kernel, or reads it from disk, and stores its address."""
        self.compile_for(self._type("return")(*map(self._type, self._arguments)))

    def compile_for(self, signature: Signature) -> None:
        """The same for a signature, where no named tuple has been passed to compiled code yet."""
        with COMPILER_LOCK:
            if self.pointer is None:
                for argument in signature.args:
                    assert not isinstance(argument, NativeStructType) or is_the_type(argument)
                self.pointer = IndirectKernel(self.py_func).pointer(signature)
                self._cell[0] = self.pointer.__wrapper_address__()

    def _type(self, argument: str) -> Any:
        text = self.py_func.__annotations__[argument]
        if text.startswith("tuple["):
            return _types.Tuple([_SCALARS[part.strip()] for part in text[6:-1].split(",")])
        return _SCALARS[text] if text in _SCALARS else the_type_of(text)

    def _intrinsic(self) -> Any:
        def call(context: Any, *given: Any) -> Any:
            signature = self._type("return")(*map(self._type, self._arguments))
            for type_, wanted in zip(given, signature.args, strict=True):
                if isinstance(wanted, NativeStructType) and type_ != wanted:
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
        """The call: by the address in the cell, once there is one."""
        cell = builder.module.globals.get(self._symbol)
        cell = cell or ir.GlobalVariable(builder.module, _POINTER, self._symbol)
        values = [context.get_value_type(type_) for type_ in signature.args]
        kind = ir.FunctionType(context.get_value_type(signature.return_type), values)
        with builder.if_then(builder.icmp_unsigned("==", builder.load(cell), _POINTER(None)), likely=False):
            builder.call(_compiling(builder.module), [builder.bitcast(cell, _POINTER)])
        return builder.call(builder.bitcast(builder.load(cell), kind.as_pointer()), arguments)


def _compiling(module: Any) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [_POINTER])
    return module.globals.get(_COMPILE) or ir.Function(module, kind, _COMPILE)


def _compile(cell: int) -> None:
    """Compiles a kernel, called by compiled code that needs it now: an interrupt waits until that has returned."""
    interrupted = False
    while _by_cell[cell].pointer is None:
        try:
            _by_cell[cell].compile()
        except KeyboardInterrupt:
            interrupted = True
        except BaseException:  # noqa: BLE001 - nothing may pass through compiled code, and it can't go on
            traceback.print_exc()
            os.abort()
    if interrupted:
        threading.Timer(_SOON_S, _thread.interrupt_main).start()


_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_compile)
_binding.add_symbol(_COMPILE, ctypes.cast(_callback, ctypes.c_void_p).value)
