"""Limits on one call of a user's hook: CPU time, memory, and the length of a range.

Nothing can interrupt compiled code from outside, so it checks itself: every turn of a loop, and every call of a
helper that calls others, counts down one number that they all share (`tick`, which copies.py inserts). When it
reaches zero, time and memory are compared with what they were at the first such check of this call. Interpreted
code is traced (`Watch`), which does the same line by line, in whatever module it runs.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import extending, types

_extending: Any = extending  # numba is untyped
_binding: Any = binding
_jitable = _extending.register_jitable  # functions that compiled hooks call, and that are compiled with them
_numba: Any = numba
_carray = _numba.carray
_types: Any = types

CPU_S = 5.0  # of the thread that makes the call: a busy machine stops nothing
MEMORY_MIB = 1024  # by which the peak of the process may rise
RANGE = 1_000_000  # entries; sum(range(...)) is one operation, within which nothing is checked
_TURNS = 256  # between two checks: of compiled loops, or lines of interpreted code
_FIRST = 64  # turns of a compiled call before its first check: most calls take fewer
_LONG_NS = 1_000_000  # between two checks: then every turn is checked
_QUICK_NS = 100_000_000  # a compiled call that takes less looks at the time alone, which needs no system call
_RSS_PER_MIB = 1 << 20 if sys.platform == "darwin" else 1 << 10  # units of ru_maxrss
_CLOCK, _CPU_CLOCK = time.CLOCK_MONOTONIC, time.CLOCK_THREAD_CPUTIME_ID
_SLOW, _LARGE = 1, 2  # the limit that was exceeded

# What all compiled hooks share: turns until the next check, when the first and the last check of this call were (0:
# not yet), its CPU time and memory when it was no longer quick, where it was stopped and why, the limits, and space
# for what the system writes. Hooks reach no deferred kernel, so they keep the interpreter's lock: no call begins within
# another.
_LEFT, _BEGAN, _LAST, _STARTED, _MEMORY, _STOPPED, _CPU_NS, _RSS, _ANSWER = range(9)
_WORDS = _ANSWER + 32
_cell = np.zeros(_WORDS, np.int64)
_CELL = "berth_policy_cell"  # by name: code that is read from disk finds it wherever it is in this process
_binding.add_symbol(_CELL, _cell.ctypes.data)


def set_limits(cpu_s: float = CPU_S, memory_mib: int = MEMORY_MIB) -> None:
    """Sets what one call may use."""
    _cell[_CPU_NS], _cell[_RSS] = int(cpu_s * 1e9), memory_mib * _RSS_PER_MIB


set_limits()


class LimitError(BaseException):
    """A call exceeded a limit; not an `Exception`, so that handlers in a policy don't catch it."""

    def __init__(self, why: int, place: str) -> None:
        super().__init__(exceeded(why))
        self.place = place


def exceeded(why: int) -> str:
    """What a call did that exceeded a limit."""
    if why == _SLOW:
        return f"did not return within {_cell[_CPU_NS] / 1e9:g} s of CPU time"
    return f"took more than {_cell[_RSS] // _RSS_PER_MIB:,} MiB of memory"


@_jitable
def bounded_range(*bounds: int) -> range:
    """`range` as hooks have it."""
    found = range(*bounds)
    if len(found) > RANGE:
        raise ValueError("a range in a hook has at most 1,000,000 entries")
    return found


# -- compiled

_clock: Any = _types.ExternalFunction("clock_gettime", _types.int32(_types.int32, _types.intp))
_usage: Any = _types.ExternalFunction("getrusage", _types.int32(_types.int32, _types.intp))


@_extending.intrinsic
def _cell_address(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.module.globals.get(_CELL)
        return found or ir.GlobalVariable(builder.module, context.get_value_type(_types.int64), _CELL)

    return _types.CPointer(_types.int64)(), generate


@_jitable
def begin_call() -> None:
    """What follows is another call, with limits of its own."""
    cell = _carray(_cell_address(), _WORDS)
    cell[_LEFT], cell[_BEGAN] = _FIRST, 0


@_jitable(forceinline=True)
def tick(site: int) -> bool:
    """Counts one turn at a place in the source; raises if a limit is exceeded."""
    cell = _carray(_cell_address(), _WORDS)
    cell[_LEFT] -= 1
    if cell[_LEFT] <= 0:
        _check(cell, site)
        if cell[_STOPPED] != 0:
            raise RuntimeError
    return True


@_jitable
def _check(cell: Any, site: int) -> None:
    now = _time_ns(cell, _CLOCK)
    if cell[_BEGAN] == 0:
        cell[_BEGAN], cell[_LAST], cell[_STARTED] = now, now - _LONG_NS, 0
    cell[_LEFT] = _TURNS if now - cell[_LAST] < _LONG_NS else 1
    cell[_LAST] = now
    if now - cell[_BEGAN] < _QUICK_NS:
        return
    used = _time_ns(cell, _CPU_CLOCK)
    _usage(0, cell[_ANSWER:].ctypes.data)
    memory = cell[_ANSWER + 4]  # ru_maxrss, behind two times of two words each
    if cell[_STARTED] == 0:
        cell[_STARTED], cell[_MEMORY] = used, memory
    if used - cell[_STARTED] > cell[_CPU_NS]:
        cell[_STOPPED] = site << 4 | _SLOW
    elif memory - cell[_MEMORY] > cell[_RSS]:
        cell[_STOPPED] = site << 4 | _LARGE


@_jitable
def _time_ns(cell: Any, clock: int) -> int:
    _clock(clock, cell[_ANSWER:].ctypes.data)
    return cell[_ANSWER] * 1_000_000_000 + cell[_ANSWER + 1]


@_jitable
def stopped() -> int:
    """Where and why the last call was stopped, reported once; 0: it was not."""
    cell = _carray(_cell_address(), _WORDS)
    found, cell[_STOPPED] = cell[_STOPPED], 0
    return found


def site_and_limit(found: int) -> tuple[int, int]:
    """What `stopped` returned, as the place in the source and the limit."""
    return found >> 4, found & 15


# -- interpreted


class Watch:
    """A trace function for one call: stops it where it exceeds a limit, and knows the line it was on last."""

    def __init__(self, function: Any) -> None:
        self._function, self._code = function, function.__code__
        self.line = self._code.co_firstlineno
        self._left = _TURNS
        self._from: tuple[int, int] | None = None  # the clock and the memory at the first check

    def call(self, *arguments: Any) -> Any:
        """What the function returns."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return self._function(*arguments)
        finally:
            sys.settrace(before)

    def __call__(self, frame: Any, event: str, value: Any) -> Any:
        """As `sys.settrace` wants it."""
        if frame.f_code is self._code:
            self.line = frame.f_lineno
        elif event == "call" and frame.f_globals.get("__name__", "").startswith("berth."):
            return None  # it reads a field
        self._left -= 1
        if self._left <= 0:
            self._left = _TURNS
            self._check(frame)
        return self

    def _check(self, frame: Any) -> None:
        now = time.thread_time_ns(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._from = self._from or now
        slow, large = now[0] - self._from[0] > _cell[_CPU_NS], now[1] - self._from[1] > _cell[_RSS]
        if not slow and not large:
            return
        while frame.f_code.co_filename != self._code.co_filename and frame.f_back is not None:
            frame = frame.f_back  # from a library to the line that calls it
        raise LimitError(_SLOW if slow else _LARGE, f"{frame.f_code.co_filename}:{frame.f_lineno}")
