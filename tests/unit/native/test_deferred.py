"""Kernels that are compiled when compiled code first reaches them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core import caching
from numba.core.errors import TypingError

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


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from typing import NamedTuple
from berth.native import deferred, interrupts, kernels
from berth.native.kernels import entry
from berth.native.structs import to_native
class Arrays(NamedTuple):
    numbers: np.ndarray
def total(arrays, row):
    found = 0.0
    for k in range(row):
        found += np.sin(arrays.numbers[k]) * np.log(1.0 + arrays.numbers[k])
    return found
total.__annotations__ = {"arrays": "Arrays", "row": "int", "return": "float"}
total = deferred.deferred(total)
def call(arrays):
    return total(arrays, 2)
call = entry(call)
given = to_native(Arrays(np.ones(2)))
compile_ = deferred.DeferredKernel.compile
def compile_slowly(kernel):
    threading.Timer(DELAY_S, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    compile_(kernel)
    time.sleep(0.5)
deferred.DeferredKernel.compile = compile_slowly
if SAFE:
    interrupts.interrupt_safely()
try:
    call(given)
    time.sleep(60)
    print("lost")
except KeyboardInterrupt:
    print("interrupted")
sys.settrace(None)
deferred.DeferredKernel.compile = compile_
print(round(call(given), 6))
"""


@pytest.mark.slow
@pytest.mark.parametrize("safe", [False, True], ids=["Python's own handler", "berth's handler"])
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2])
def test_ctrl_c_while_a_kernel_is_compiled_is_raised_once_compiled_code_has_returned(
    ctrl_c, tmp_path, safe, delay_s
):
    file = tmp_path / "interrupted.py"
    file.write_text(f"DELAY_S, SAFE = {delay_s}, {safe}\n{INTERRUPTED}")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, file], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n1.166526\n"), done.stderr


def test_a_kernel_that_threads_reach_together_is_compiled_once(monkeypatch):
    @deferred
    def largest(shelf: Shelf) -> float:
        return max(shelf.heights[0], shelf.heights[1])

    @uncached
    def call(shelf):
        return largest(shelf)

    address = module.FunctionPointer.__wrapper_address__

    def slow_address(pointer):
        time.sleep(0.2)  # the other thread looks meanwhile
        return address(pointer)

    monkeypatch.setattr(module.FunctionPointer, "__wrapper_address__", slow_address)
    given, found = shelf(), []
    threads = [threading.Thread(target=lambda: found.append(call(given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4.0] * 4


def test_an_argument_of_another_type_than_the_annotation_is_refused():
    @deferred
    def item(shelf: Shelf, at: int) -> float:
        return shelf.heights[at]

    @uncached
    def call(shelf):
        return item(shelf, 1.5)

    with pytest.raises(TypingError, match="item"):
        call(shelf())


@pytest.mark.slow
def test_a_damaged_file_is_compiled_again(tmp_path):
    file = tmp_path / "damaged.py"
    file.write_text(FAILS.replace("no_such_field", "numbers"))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def run():
        done = subprocess.run(
            [sys.executable, file], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr

    run()
    stored = [path for path in tmp_path.rglob("*.nb?") if path.name.startswith("damaged.wrong")]
    assert {path.suffix for path in stored} >= {".nbi"}
    for path in stored:
        path.write_bytes(path.read_bytes()[:20])
    run()
    run()


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


@pytest.mark.slow
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
    with pytest.raises(TypeError, match="Shelf has two types"):
        to_native(Shelf(np.zeros(3, np.int32)))
