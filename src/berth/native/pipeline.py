"""What a kernel goes through in numba: its passes without those for features that the kernel does not use.

numba spends most of its time on Python's side: it computes the lifetime of every variable before and after each pass,
types each addition of two integers by asking twenty templates, and parses a module to learn the size of a type. Here
passes that would change nothing are left out, and such answers are remembered. The compiled code is the same.
"""

from __future__ import annotations

import gc
import types as python
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba.core import compiler, compiler_machinery, errors, ir, typed_passes, types, untyped_passes
from numba.core.registry import cpu_target

_Passes: Any = compiler_machinery.PassManager  # numba is untyped
_Builder: Any = compiler.DefaultPassBuilder
_NopythonRewrites: Any = typed_passes.NopythonRewrites
_register_pass: Any = compiler_machinery.register_pass
_types: Any = types
_Flags: Any = compiler.Flags
_ir: Any = ir
_errors: Any = errors

# for closures, comprehensions, `with`, functions that numba inlines itself, `literally` and `literal_unroll`
_FOR_CLOSURES: tuple[Any, ...] = (
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
)
_FOR_REPORTS: tuple[Any, ...] = (typed_passes.AnnotateTypes, typed_passes.DumpParforDiagnostics)
_SPECIAL_NAMES = frozenset(("bool", "literally", "literal_unroll", "stencil", "prange", "objmode"))
_NUMBERS = (
    types.Integer,
    types.Float,
    types.Boolean,
    types.IntegerLiteral,
    types.BooleanLiteral,
    types.IntEnumMember,
)


def passes_for(state: Any) -> list[Any]:
    """The passes of one function, in numba's order."""
    plain = _is_plain(state.func_id.func.__code__)
    return [_plain_passes() if plain else _Builder.define_nopython_pipeline(state)]


def _is_plain(code: python.CodeType) -> bool:
    """Whether a function has no function inside, such as a comprehension, and none of numba's special names."""
    inner = any(isinstance(constant, python.CodeType) for constant in code.co_consts)
    return not inner and _SPECIAL_NAMES.isdisjoint(code.co_names)


def _plain_passes() -> Any:
    passes = _Passes("nopython")
    passes.passes, passes._analysis = _plain()
    passes._print_after = passes._print_before = passes._print_wrap = ()
    passes._finalized = True
    return passes


@cache
def _plain() -> tuple[list[Any], Any]:
    """The passes of a plain function with their descriptions, and what numba knows of how they depend on each other."""
    everything = _Builder.define_nopython_pipeline(_AnyFunction)
    left_out = {*_FOR_CLOSURES, *_FOR_REPORTS}
    passes = [
        (_ArrayRewrites if one is _NopythonRewrites else one, text)
        for one, text in everything.passes
        if one not in left_out
    ]
    everything.passes = passes
    return passes, everything.dependency_analysis()


class _AnyFunction:
    """As much of numba's state of a compilation as choosing its passes takes."""

    func_ir = None
    flags = _Flags()


@_register_pass(mutates_CFG=True, analysis_only=False)
class _ArrayRewrites(_NopythonRewrites):  # type: ignore[misc]
    """numba's rewriting of operations on whole arrays, where there are any."""

    _name = "berth_array_rewrites"

    def run_pass(self, state: Any) -> bool:
        """Rewrites if there may be something to rewrite."""
        return _has_array_operations(state) and bool(super().run_pass(state))


def _has_array_operations(state: Any) -> bool:
    """Whether an operation or a call returns an array, or something is read by the name of a field."""
    typemap = state.typemap
    if any(isinstance(one, _types.StringLiteral) for one in typemap.values()):
        return True
    for block in state.func_ir.blocks.values():
        for assign in block.find_insts(_ir.Assign):
            value = assign.value
            operation = isinstance(value, _ir.Expr) and value.op not in (
                "getattr",
                "getitem",
                "static_getitem",
            )
            if operation and isinstance(typemap[assign.target.name], _types.Array):
                return True
    return False


@contextmanager
def remembering() -> Iterator[None]:
    """Compiles in less time: garbage is collected rarely, messages are plain, and answers are remembered.

    numba creates millions of objects, few of which are garbage in cycles. It formats the messages of tens of thousands
    of errors that it catches itself. Hold the compiler lock.
    """
    typing, target = cpu_target.typing_context, cpu_target.target_context
    if "get_abi_sizeof" in vars(target):  # inside another compilation
        yield
        return
    threshold, scheme = gc.get_threshold(), _errors._termcolor_inst
    gc.set_threshold(100_000, 50, 100)
    _errors._termcolor_inst = _PlainMessages()
    target.get_abi_sizeof = _remembered_sizes(target.get_abi_sizeof)
    typing.resolve_function_type = _remembered_operators(typing.resolve_function_type)
    try:
        yield
    finally:
        del target.get_abi_sizeof, typing.resolve_function_type
        _errors._termcolor_inst = scheme
        gc.set_threshold(*threshold)


class _PlainMessages:
    """Messages of errors without colors."""

    def _plain(self, message: str) -> str:
        return message

    code = errmsg = filename = indicate = highlight = reset = _plain


_sizes: dict[str, int] = {}
_operators: dict[Any, Any] = {}


def _remembered_sizes(size_of: Callable[[Any], int]) -> Callable[[Any], int]:
    """The size of a type of LLVM: numba writes, parses and discards a module to compute it."""

    def size(type_: Any) -> int:
        text = str(type_)
        if "%" in text:  # named: the name does not say what it is
            return size_of(type_)
        if text not in _sizes:
            _sizes[text] = size_of(type_)
        return _sizes[text]

    return size


def _remembered_operators(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """The signature of one of Python's operators for numbers: numba tries every kind of addition for each one."""

    def signature(function: Any, arguments: Any, keywords: Any) -> Any:
        numbers = all(isinstance(one, _NUMBERS) for one in arguments)
        if keywords or not numbers or getattr(function, "__module__", "") != "_operator":
            return resolve(function, arguments, keywords)
        key = function, tuple(arguments)
        if key not in _operators:
            _operators[key] = resolve(function, arguments, keywords)
        return _operators[key]

    return signature
