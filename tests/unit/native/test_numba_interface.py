"""Each part of numba that berth relies on although numba does not document it.

pyproject.toml limits numba to the minor series that these tests pass with. Raise the limit and run them: a failure
names what numba changed, and the module of berth that uses it.
"""

from __future__ import annotations

import gc
import inspect
import pickle
from enum import IntEnum

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core import (
    base,
    caching,
    cgutils,
    codegen,
    compiler,
    compiler_machinery,
    dispatcher,
    errors,
    serialize,
    sigutils,
    typed_passes,
    typing,
)
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.typing import templates
from numba.np import arrayobj

from berth.native.kernels import entry, indirect, inlined, kernel, pointer_to
from berth.native.linking import InnerLibrary, OuterLibrary


def parameters(function):
    return list(inspect.signature(function).parameters)


def changed(name, used_by):
    return f"numba {numba.__version__} changed {name}, which {used_by} relies on"


@pytest.mark.parametrize(
    ("owner", "name", "expected", "used_by"),
    [
        (codegen.JITCodeLibrary, "finalize", ["self"], "native/linking.py"),
        (codegen.JITCodeLibrary, "_get_module_for_linking", ["self"], "native/linking.py"),
        (codegen.JITCodeLibrary, "_finalize_dynamic_globals", ["self"], "native/linking.py"),
        (codegen.JITCodeLibrary, "_optimize_functions", ["self", "ll_module"], "native/linking.py"),
        (codegen.JITCPUCodegen, "_function_pass_manager", ["self", "kwargs"], "native/linking.py"),
        (codegen.JITCPUCodegen, "set_env", ["self", "env_name", "env"], "native/linking.py"),
        (compiler.Compiler, "_compile_core", ["self"], "native/linking.py"),
        (compiler.Flags, "copy", ["self"], "native/linking.py"),
        (compiler.CompileResult, "_reduce", ["self"], "native/functions.py"),
        (dispatcher.Dispatcher, "get_call_template", ["self", "args", "kws"], "native/kernels.py"),
        (base.BaseContext, "get_abi_sizeof", ["self", "ty"], "native/pipeline.py"),
        (typing.BaseContext, "resolve_function_type", ["self", "func", "args", "kws"], "native/pipeline.py"),
        (compiler.DefaultPassBuilder, "define_nopython_pipeline", ["state", "name"], "native/pipeline.py"),
        (compiler_machinery.PassManager, "dependency_analysis", ["self"], "native/pipeline.py"),
        (typed_passes.NopythonRewrites, "run_pass", ["self", "state"], "native/pipeline.py"),
        (dispatcher._FunctionCompiler, "compile", ["self", "args", "return_type"], "native/kernels.py"),
        (caching.FunctionCache, "load_overload", ["self", "sig", "target_context"], "native/cache.py"),
        (caching.FunctionCache, "_load_overload", ["self", "sig", "target_context"], "native/cache.py"),
        (type(rtsys), "initialize", ["self", "ctx"], "native/cache.py"),
        (caching.FunctionCache, "save_overload", ["self", "sig", "data"], "native/cache.py"),
        (caching.CompileResultCacheImpl, "check_cachable", ["self", "cres"], "native/cache.py"),
        (templates.AttributeTemplate, "resolve", ["self", "value", "attr"], "native/structs.py"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_private_method_takes_the_arguments_that_berth_passes(owner, name, expected, used_by):
    method = getattr(owner, name, None)
    assert method is not None, changed(f"{owner.__name__}.{name} (it is gone)", used_by)
    assert parameters(method) == expected, changed(f"the arguments of {owner.__name__}.{name}", used_by)


@pytest.mark.parametrize(
    ("module", "names", "used_by"),
    [
        (
            arrayobj,
            ["populate_array", "make_array", "getitem_arraynd_intp", "setitem_array"],
            "schedule/elements.py",
        ),
        (cgutils, ["get_record_member", "pack_array", "copy_struct", "raw_memcpy"], "schedule/sealed.py"),
        (errors, ["termcolor", "_termcolor_inst"], "native/pipeline.py"),
        (sigutils, ["normalize_signature"], "native/kernels.py"),
        (serialize, ["dumps"], "native/functions.py"),
        (types, ["WrapperAddressProtocol", "unliteral", "ExternalFunction"], "native/kernels.py"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_private_function_exists(module, names, used_by):
    missing = [name for name in names if not hasattr(module, name)]
    assert not missing, changed(f"{module.__name__} (no {', '.join(missing)})", used_by)


@inlined
def _third(number):
    return number // 3


@kernel
def _twice_third(number):
    return 2 * _third(number)


def uncached(function):
    """An entry that is compiled here, whatever earlier runs left on disk."""
    made = entry(function)
    made._cache = caching.NullCache()
    return made


@uncached
def _by_entry(number):
    return _twice_third(number)


@indirect
def _by_address(number):
    return _twice_third(number)


def test_an_inner_kernel_is_linked_and_has_no_machine_code():
    assert _by_entry(9) == 6
    (inner,) = _twice_third.overloads.values()
    why = changed("how a compiler pipeline takes its library", "native/linking.py")
    assert isinstance(inner.library, InnerLibrary), why
    assert inner.library.get_pointer_to_function(inner.fndesc.llvm_func_name) == 0, why
    (outer,) = _by_entry.overloads.values()
    assert isinstance(outer.library, OuterLibrary), why


def test_an_error_in_an_inner_kernel_reaches_python_with_its_message():
    @kernel
    def inner(number):
        if number > 1:
            raise ValueError("too large")
        return number

    @uncached
    def outer(number):
        return inner(number)

    assert outer(1) == 1
    with pytest.raises(ValueError, match="too large"):
        outer(2)


def test_the_garbage_collector_is_as_before_once_a_kernel_is_compiled():
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    try:
        assert uncached(lambda number: number + 1)(1) == 2
        assert gc.get_threshold() == (701, 11, 12)
    finally:
        gc.set_threshold(*before)


def test_a_kernel_is_not_inlined_because_its_first_caller_is():
    @kernel
    def callee(number):
        return number + 1

    @inlined
    def caller(number):
        return callee(number)

    assert uncached(lambda number: 2 * caller(number))(1) == 4
    inlined_, called = (next(iter(one.overloads.values())).library.get_llvm_str() for one in (caller, callee))
    why = changed("how flags are inherited", "native/linking.py")
    assert "alwaysinline" in inlined_, why
    assert "alwaysinline" not in called, why


def test_members_of_an_enum_and_integers_share_one_version_of_a_kernel():
    class Color(IntEnum):
        RED = 3

    @kernel
    def twice(number):
        return 2 * number

    assert uncached(lambda number: twice(Color.RED) + twice(number) + twice(1))(4) == 16
    assert len(twice.overloads) == 1


def test_a_function_that_numba_compiles_itself_may_call_an_inner_kernel():
    @numba.njit
    def foreign(number):
        return _twice_third(number) + 1

    assert foreign(9) == 7, changed("how libraries are linked", "native/linking.py")


def test_an_error_in_an_inner_kernel_is_raised_by_the_entry():
    @kernel
    def divide(number, by):
        return number // by

    @entry
    def call(number, by):
        return divide(number, by)

    with pytest.raises(ZeroDivisionError):
        call(1, 0)


def test_an_address_is_callable():
    pointer = _by_address.pointer(types.int64(types.int64))

    @numba.njit
    def call(function, number):
        return function(number)

    assert call(pointer, 9) == 6, changed("WrapperAddressProtocol", "native/kernels.py")


@pytest.mark.parametrize("argument", [np.int32(9), np.int64(9)])
def test_a_kernel_has_one_version_for_all_signed_integers_and_constants(argument):
    @kernel
    def half(number):
        return number // 2

    @uncached
    def call(number):
        return half(number) + half(4)

    assert call(argument) == 6
    why = changed("Dispatcher.get_call_template", "native/kernels.py")
    assert half.signatures == [(types.int64,)], why


def test_a_compiled_function_survives_pickling():
    compiled = numba.njit(types.int64(types.int64), no_cpython_wrapper=True)(lambda x: x + 1)
    (result,) = compiled.overloads.values()
    state = pickle.loads(serialize.dumps(result._reduce()))
    again = compiler.CompileResult._rebuild(cpu_target.target_context, *state)
    pointer = pointer_to(again, types.int64(types.int64))
    assert pointer.__wrapper_address__(), changed("CompileResult._reduce and _rebuild", "native/functions.py")


def test_the_code_of_a_struct_field_is_built_with_llvmlite():
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64).as_pointer()]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    word = builder.load(function.args[0])
    word.set_metadata("invariant.load", module.add_metadata([]))
    assert "!invariant.load" in str(module), (
        "llvmlite changed set_metadata, which native/structs.py relies on"
    )
