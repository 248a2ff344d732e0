"""Named tuples that compiled code receives as one pointer."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit, types
from numba.core.errors import TypingError

from berth.native.kernels import indirect
from berth.native.structs import to_native

RECORD = np.dtype([("size", "i4"), ("weight", "f8"), ("part", "f8", (2,))], align=True)


class Inner(NamedTuple):
    table: Any
    row: Any


class Outer(NamedTuple):
    numbers: Any
    inner: Inner
    records: Any


def outer() -> Outer:
    table = np.arange(12, dtype=np.float64).reshape(3, 4)
    return Outer(np.arange(5), Inner(table, np.array([7], np.int32)), np.zeros(3, RECORD))


@pytest.mark.slow
def test_arrays_are_read_by_field_at_any_depth():
    @njit
    def read(given):
        return given.numbers[4], given.inner.table[2, 1], given.inner.row[0], given.numbers[1:3].sum()

    assert read(to_native(outer())) == (4, 9.0, 7, 3)


def test_lengths_and_shapes_are_those_of_the_arrays():
    @njit
    def read(given):
        return len(given.records), given.inner.table.shape, given.inner.table.size, given.inner.table.strides

    assert read(to_native(outer())) == (3, (3, 4), 12, (32, 8))


def test_compiled_code_writes_to_the_arrays_themselves():
    @njit
    def write(given):
        given.inner.table[1, 3] = -1.0
        record = given.records[2]
        record.size, record.weight = 5, 0.5
        record.part[1] = 2.0

    values = outer()
    write(to_native(values))
    assert values.inner.table[1, 3] == -1.0
    assert values.records["size"].tolist() == [0, 0, 5]
    assert values.records["weight"].tolist() == [0.0, 0.0, 0.5]
    assert values.records["part"].tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 2.0]]


def test_a_struct_is_passed_on_from_function_to_function():
    @njit
    def last(inner):
        return inner.table[-1, -1]

    @njit
    def both(given):
        return last(given.inner) + given.numbers[-1]

    assert both(to_native(outer())) == 15.0


def test_reading_an_array_counts_no_references():
    @njit
    def total(given):
        one = given.numbers
        other = one[1:]
        return one.sum() + other.sum()

    values = outer()
    table = to_native(values)
    before = sys.getrefcount(values.numbers)
    result = total(table)
    after = sys.getrefcount(values.numbers)
    assert (result, after) == (20, before)


@indirect
def _twice(number: float) -> float:
    return 2.0 * number


def test_a_function_is_called_by_its_address():
    class Functions(NamedTuple):
        twice: Any

    @njit
    def call(functions, number):
        return functions.twice(number)

    assert call(to_native(Functions(_twice.pointer(types.float64(types.float64)))), 21.0) == 42.0


def test_tuples_of_equal_types_share_one_compiled_version():
    @njit
    def size(given):
        return len(given.numbers)

    longer = outer()._replace(numbers=np.arange(9))
    assert (size(to_native(outer())), size(to_native(longer))) == (5, 9)
    assert len(size.signatures) == 1
    floats = outer()._replace(numbers=np.zeros(2))
    assert size(to_native(floats)) == 2
    assert len(size.signatures) == 2


def test_an_unknown_field_is_refused():
    @njit
    def read(given):
        return given.nothing

    with pytest.raises(TypingError, match="nothing"):
        read(to_native(outer()))


def test_an_array_that_is_not_contiguous_is_refused():
    with pytest.raises(AssertionError, match="contiguous"):
        to_native(outer()._replace(numbers=np.arange(10)[::2]))
