"""Compilers that optimize a kernel once, as a part of the functions that are called from outside.

numba compiles each function to machine code of its own, together with all functions that it calls: what is at the
bottom of ten calls is optimized ten times. Here a function that only compiled functions call (`InnerCompiler`) ends
as LLVM's intermediate code. The functions that are called from outside (`OuterCompiler`) link in all functions that
they reach, optimize them together, and generate machine code.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

from numba.core import codegen, compiler

from berth.native.pipeline import passes_for, remembering

_JITCodeLibrary: Any = codegen.JITCodeLibrary  # numba is untyped
_Compiler: Any = compiler.Compiler
_Flags: Any = compiler.Flags


class _Library(_JITCodeLibrary):  # type: ignore[misc]
    def _optimize_functions(self, module: Any) -> None:
        """Runs the passes for single functions, not on those that are only declared, as numba does."""
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)


class OuterLibrary(_Library):
    """A function that is called from outside, with each function that it reaches once."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Links, optimizes, generates machine code."""
        self._linking_libraries = _reachable(self._linking_libraries)
        super().finalize()


class InnerLibrary(_Library):
    """The intermediate code of one function that is linked into its callers."""

    def finalize(self) -> None:
        """Generates no machine code."""
        self._finalize_dynamic_globals()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """What numba sets the environment of a compiled function with."""
        return _NoEnvironment

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


class _NoEnvironment:
    """In place of the code generator: a function without machine code has no environment.

    Kernels need none: those that are read from disk run without it, too.
    """

    @staticmethod
    def set_env(name: str, environment: object) -> None:
        """Does nothing."""


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
        return _callee_flags(flags)


class _CalleeFlags(_Flags):  # type: ignore[misc]
    """Flags that do not change. numba looks up a function by the flags of its caller, tens of thousands of times."""

    @cached_property
    def _hash(self) -> int:
        return int(super().__hash__())

    def __hash__(self) -> int:
        return self._hash


_callee_flags = cache(_CalleeFlags)


class InnerCompiler(_Compiler):  # type: ignore[misc]
    """Compiles a function that only compiled functions call."""

    library_class: Any = InnerLibrary

    def _compile_core(self) -> Any:
        state = self.state
        state.flags = _OwnFlags(state.flags)
        state.library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        with remembering():
            return super()._compile_core()

    def define_pipelines(self) -> list[Any]:
        """The passes that the function needs."""
        return passes_for(self.state)


class OuterCompiler(InnerCompiler):
    """Compiles a function that is called from outside."""

    library_class = OuterLibrary
