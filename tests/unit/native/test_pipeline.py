"""The passes of a kernel, and what is remembered while it is compiled."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core import caching, errors
from numba.core.registry import cpu_target

from berth.native import pipeline
from berth.native.kernels import entry


def uncached(function):
    """An entry that is compiled here, whatever earlier runs left on disk."""
    made = entry(function)
    made._cache = caching.NullCache()
    return made


@pytest.fixture
def passes(monkeypatch):
    """The names of the passes of each function that is compiled."""
    seen, choose = {}, pipeline.passes_for

    def recorded(state):
        (manager,) = choose(state)
        seen[state.func_id.func_name] = [one.__name__ for one, _ in manager.passes]
        return [manager]

    monkeypatch.setattr("berth.native.linking.passes_for", recorded)
    return seen


def test_a_plain_function_skips_the_passes_for_closures(passes):
    @uncached
    def plain(number):
        return number + 1

    assert plain(1) == 2
    assert "NativeLowering" in passes["plain"]
    assert not {"InlineClosureLikes", "InlineInlinables", "NopythonRewrites"} & set(passes["plain"])


def test_a_function_with_a_comprehension_goes_through_all_passes(passes):
    @uncached
    def squares(count):
        return sum([k * k for k in range(count)])

    assert squares(4) == 14
    assert {"InlineClosureLikes", "NopythonRewrites"} <= set(passes["squares"])


def test_a_function_that_numba_inlines_goes_through_all_passes(passes):
    @uncached
    def truth(number):
        return bool(number)

    assert truth(2) is True
    assert "InlineOverloads" in passes["truth"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a: (a + 1.0) * a, [2.0, 6.0]),
        (lambda a: np.sqrt(a * a), [1.0, 2.0]),
        (lambda a: -a, [-1.0, -2.0]),
    ],
)
def test_operations_on_whole_arrays_are_still_made_one_loop(monkeypatch, function, expected):
    rewritten, rewrite = [], pipeline._NopythonRewrites.run_pass
    monkeypatch.setattr(
        pipeline._NopythonRewrites,
        "run_pass",
        lambda self, state: rewritten.append(state.func_id.func_name) or rewrite(self, state),
    )
    assert uncached(function)(np.array([1.0, 2.0])).tolist() == expected
    assert rewritten.count("<lambda>") == 1


def test_a_function_that_reads_elements_is_not_searched_for_array_operations(monkeypatch):
    monkeypatch.setattr(pipeline._NopythonRewrites, "run_pass", None)
    assert uncached(lambda a: a[0] + a[1])(np.array([1.0, 2.0])) == 3.0


def test_operators_on_numbers_are_typed_once(monkeypatch):
    asked = []
    monkeypatch.setattr(pipeline, "_operators", {})
    resolve = pipeline._remembered_operators(lambda *given: asked.append(given) or f"answer {len(asked)}")
    integers, arrays = (types.int64, types.int64), (types.float64[:], types.int64)
    assert resolve(operator.add, integers, {}) == resolve(operator.add, integers, {}) == "answer 1"
    assert resolve(operator.sub, integers, {}) == "answer 2"
    assert (resolve(operator.add, arrays, {}), resolve(operator.add, arrays, {})) == ("answer 3", "answer 4")
    assert (resolve(max, integers, {}), resolve(max, integers, {})) == ("answer 5", "answer 6")


def test_numba_is_as_before_once_a_kernel_is_compiled():
    scheme = errors._termcolor_inst
    typing, target = cpu_target.typing_context, cpu_target.target_context
    with pipeline.remembering():
        assert errors._termcolor_inst is not scheme
        with pipeline.remembering():
            assert "get_abi_sizeof" in vars(target)
        assert "get_abi_sizeof" in vars(target)
        assert errors.termcolor().errmsg("text") == "text"
    assert errors._termcolor_inst is scheme
    assert "get_abi_sizeof" not in vars(target)
    assert "resolve_function_type" not in vars(typing)


def test_sizes_of_types_are_remembered_by_what_the_types_are():
    calls = []
    size = pipeline._remembered_sizes(lambda type_: calls.append(type_) or 8 * len(calls))
    pair = ir.LiteralStructType([ir.IntType(64), ir.DoubleType(), ir.IntType(3)])
    same = ir.LiteralStructType([ir.IntType(64), ir.DoubleType(), ir.IntType(3)])
    pipeline._sizes.pop(str(pair), None)
    assert size(pair) == size(same) == 8
    named = ir.global_context.get_identified_type("berth_test_named")
    assert (size(named), size(named)) == (16, 24)
    pipeline._sizes.pop(str(pair))
