"""The name under which a compiled function is stored changes with everything that its code contains."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from numba import float64, njit

from berth.native.cache import cache_folder
from berth.native.functions import fingerprint_of, load_or_compile

READS_A_MODULE = """
import numpy as np
import settings


def f(x):
    return np.abs(x) * settings.WEIGHT + settings.more(x)
"""
SETTINGS = "WEIGHT = {weight}\n\n\ndef more(x):\n    return {result}\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The function `f`, read again after `settings.py` was written with these values."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "reads.py").write_text(READS_A_MODULE)

    def make(weight="2.0", result="x"):
        (tmp_path / "settings.py").write_text(SETTINGS.format(weight=weight, result=result))
        for name in ("settings", "reads"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("reads").f

    yield make
    for name in ("settings", "reads"):
        sys.modules.pop(name, None)


def test_values_and_functions_of_a_module_are_part_of_the_name(load):
    name = fingerprint_of(load())
    assert fingerprint_of(load()) == name
    assert fingerprint_of(load(weight="3.0")) != name
    assert fingerprint_of(load(result="x + 1")) != name


def test_every_entry_of_a_closed_over_array_is_part_of_the_name():
    def closing_over(array):
        return lambda x: array[0] + x

    zeros, other = np.zeros(2000), np.zeros(2000)
    other[1000] = 1.0
    assert repr(zeros) == repr(other)
    assert fingerprint_of(closing_over(zeros)) == fingerprint_of(closing_over(zeros.copy()))
    assert fingerprint_of(closing_over(zeros)) != fingerprint_of(closing_over(other))


def test_every_entry_of_a_default_is_part_of_the_name():
    def with_default(array):
        def f(x, table=array):
            return table[0] + x

        return f

    zeros, other = np.zeros(2000), np.zeros(2000)
    other[1000] = 1.0
    assert fingerprint_of(with_default(zeros)) != fingerprint_of(with_default(other))


@pytest.mark.parametrize("damage", [b"", b"no pickle", b"\x80\x04}."])
def test_a_damaged_file_is_compiled_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    signature, compiled = float64(float64), []

    def compile_function():
        compiled.append(1)
        return njit(signature)(lambda x: x + 1.0).overloads[signature.args]

    load_or_compile("key", signature, compile_function)
    load_or_compile("key", signature, compile_function)
    (file,) = (cache_folder() / "policies").glob("key.bin")
    file.write_bytes(damage)
    load_or_compile("key", signature, compile_function)
    assert len(compiled) == 2
