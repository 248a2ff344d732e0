"""Compilers that optimize a kernel once, as a part of the functions that are called from outside.

numba compiles each function to machine code of its own, together with all functions that it calls: what is at the
bottom of ten calls is optimized ten times. Here a function that only compiled functions call (`InnerCompiler`) ends
as LLVM's intermediate code. The functions that are called from outside (`OuterCompiler`) link in all functions that
they reach, optimize them together, and generate machine code.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import binding
from numba.core import codegen, compiler

_JITCodeLibrary: Any = codegen.JITCodeLibrary  # numba is untyped
_Compiler: Any = compiler.Compiler
_Flags: Any = compiler.Flags
_ENVIRONMENT = "_ZN08NumbaEnv"  # prefix of the variables that point to a function's environment


class OuterLibrary(_JITCodeLibrary):  # type: ignore[misc]
    """A function that is called from outside, with each function that it reaches once."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Links, optimizes, generates machine code."""
        self._linking_libraries = _reachable(self._linking_libraries)
        super().finalize()


class InnerLibrary(_JITCodeLibrary):  # type: ignore[misc]
    """The intermediate code of one function that is linked into its callers."""

    def finalize(self) -> None:
        """Generates no machine code, only the variable that numba sets once a function is compiled."""
        self._finalize_dynamic_globals()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        names = [variable.name for variable in self._final_module.global_variables]
        self._define([name for name in names if name.startswith(_ENVIRONMENT)])
        self._finalized = True

    def _define(self, names: list[str]) -> None:
        module = binding.parse_assembly("\n".join(f"@{name} = common global ptr null" for name in names))
        module.triple, module.data_layout = self._final_module.triple, self._codegen._data_layout
        self._codegen._add_module(module)
        self._codegen._engine.finalize_object()

    @cached_property
    def alone(self) -> _Alone:
        """The function without those that it calls."""
        self._ensure_finalized()
        return _Alone(super()._get_module_for_linking(), self._reload_init)

    @cached_property
    def _complete(self) -> Any:
        module = self.alone.module.clone()
        for library in _reachable(self._linking_libraries):
            module.link_in(library._get_module_for_linking(), preserve=True)
        return module

    def _get_module_for_linking(self) -> Any:
        """The function with all that it calls, for callers that numba compiles in its own way."""
        return self._complete


class _Alone:
    """One function's code, as a library links it."""

    def __init__(self, module: Any, reload_init: set[Any]) -> None:
        self.module, self._reload_init = module, reload_init

    def _get_module_for_linking(self) -> Any:
        return self.module


def _reachable(libraries: list[Any]) -> list[Any]:
    """The libraries and those that they call, directly or not, each once and alone."""
    found = dict.fromkeys(libraries)
    stack = list(found)
    while stack:
        library = stack.pop()
        inner = library._linking_libraries if isinstance(library, InnerLibrary) else []
        stack += (called for called in inner if called not in found)
        found.update(dict.fromkeys(inner))
    return [library.alone if isinstance(library, InnerLibrary) else library for library in found]


class _OwnFlags(_Flags):  # type: ignore[misc]
    """Flags that are for one function alone.

    numba gives the functions that it calls a copy of them: each would be inlined if its first caller is, and numba's
    own functions (`max`, `np.empty`, ...) would be compiled once for every kind of caller.
    """

    __slots__ = ()

    def copy(self) -> Any:
        flags = _Flags(self)
        flags.forceinline, flags.no_cpython_wrapper, flags.no_cfunc_wrapper = False, True, True
        return flags


class InnerCompiler(_Compiler):  # type: ignore[misc]
    """Compiles a function that only compiled functions call."""

    library_class: Any = InnerLibrary

    def _compile_core(self) -> Any:
        state = self.state
        state.flags = _OwnFlags(state.flags)
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super()._compile_core()


class OuterCompiler(InnerCompiler):
    """Compiles a function that is called from outside."""

    library_class = OuterLibrary
