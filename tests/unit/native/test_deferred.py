"""Kernels that are compiled when compiled code first reaches them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core import caching

from berth.native import deferred as module
from berth.native.deferred import deferred, deferred_kernels
from berth.native.kernels import entry
from berth.native.structs import to_native


class Shelf(NamedTuple):
    """Arrays for compiled code, under a name that only this test uses."""

    heights: Any


def kernel_of(name):
    return deferred_kernels()[f"{__name__}.{name}"]


def uncached(function):
    """An entry that is compiled here, whatever earlier runs left on disk."""
    made = entry(function)
    made._cache = caching.NullCache()
    return made


def shelf():
    return to_native(Shelf(np.array([1.0, 4.0, 2.5])))


@deferred
def tallest(shelf: Shelf, first: int, last: int) -> tuple[int, float]:
    best = first
    for k in range(first, last):
        if shelf.heights[k] > shelf.heights[best]:
            best = k
    return best, shelf.heights[best]


@deferred
def raise_all(shelf: Shelf, by: float, doubled: bool) -> None:
    for k in range(len(shelf.heights)):
        shelf.heights[k] += 2.0 * by if doubled else by


@deferred
def total(shelf: Shelf) -> float:
    found = 0.0
    for height in shelf.heights:
        found += height
    return found


@deferred
def half(shelf: Shelf) -> float:
    return total(shelf) / 2.0


def test_a_kernel_is_compiled_when_it_is_reached():
    @uncached
    def find(shelf, wanted):
        if wanted:
            return tallest(shelf, np.int32(0), 3)
        return -1, 0.0

    given = shelf()
    assert find(given, False) == (-1, 0.0)
    assert kernel_of("tallest").pointer is None
    assert find(given, True) == (1, 4.0)
    pointer = kernel_of("tallest").pointer
    assert pointer is not None
    assert find(given, True) == (1, 4.0)
    assert kernel_of("tallest").pointer is pointer


def test_a_kernel_without_a_result_writes_to_its_arrays():
    @uncached
    def call(shelf):
        raise_all(shelf, 1.0, True)

    given = shelf()
    call(given)
    assert given.values.heights.tolist() == [3.0, 6.0, 4.5]


def test_a_kernel_that_another_one_calls_is_compiled_on_its_own():
    @uncached
    def call(shelf):
        return half(shelf)

    assert call(shelf()) == 3.75
    assert kernel_of("half").pointer.__wrapper_address__() != kernel_of("total").pointer.__wrapper_address__()


def test_an_interrupt_while_a_kernel_is_compiled_is_raised_once_compiled_code_has_returned(monkeypatch):
    @deferred
    def smallest(shelf: Shelf) -> float:
        return min(shelf.heights[0], shelf.heights[1])

    @uncached
    def call(shelf):
        return smallest(shelf)

    given, compile_, tries = shelf(), module.DeferredKernel.compile, []

    def interrupted(kernel):
        tries.append(kernel)
        if len(tries) == 1:
            raise KeyboardInterrupt
        compile_(kernel)

    monkeypatch.setattr(module.DeferredKernel, "compile", interrupted)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it arrives a moment after the call
        assert call(given) == 1.0
        tries.append("returned")
        time.sleep(60)
    assert tries[2:] == ["returned"]


FAILS = """
import numpy as np
from typing import NamedTuple
from berth.native.deferred import deferred
from berth.native.kernels import entry
from berth.native.structs import to_native
class Arrays(NamedTuple):
    numbers: np.ndarray
def wrong(arrays, row):
    return arrays.no_such_field[row]
wrong.__annotations__ = {"arrays": "Arrays", "row": "int", "return": "float"}
wrong = deferred(wrong)
def call(arrays):
    return wrong(arrays, 0)
print(entry(call)(to_native(Arrays(np.zeros(2)))))
"""


def test_a_kernel_that_can_not_be_compiled_ends_the_process_with_numbas_message(tmp_path):
    file = tmp_path / "fails.py"
    file.write_text(FAILS)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, file], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode < 0
    assert "no_such_field" in done.stderr
    assert done.stdout == ""


def test_named_tuples_that_a_deferred_kernel_takes_have_one_type():
    shelf()
    with pytest.raises(AssertionError, match="Shelf has two types"):
        to_native(Shelf(np.zeros(3, np.int32)))
