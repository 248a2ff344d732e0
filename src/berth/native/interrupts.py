"""Ctrl-C in a callback of compiled code, which no exception must pass through: it is raised where Python called that.

Python handles a signal before its next bytecode, which may be one of a callback. numba looks up the type of an array
that a compiled function returns in one, and does not check whether that has failed: an exception there ends the
process with a segmentation fault or a SystemError. LLVM hands over machine code in one: without it numba has no
compiled function. Deferred kernels are compiled in another one.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

_CALLBACKS = frozenset(
    (
        ("numba.core.serialize", "_numba_unpickle"),
        ("llvmlite.binding.executionengine", "_raw_object_cache_notify"),
        ("llvmlite.binding.executionengine", "_raw_object_cache_getbuffer"),
        ("berth.native.deferred", "_compile"),
    )
)  # module and function


def interrupt_safely() -> None:
    """Install the handler of Ctrl-C, unless Ctrl-C is ignored or handled already."""
    handled = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if not handled and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)


def raise_in_caller(callback: FrameType) -> None:
    """Raise KeyboardInterrupt where Python called the compiled code, once that has returned."""
    caller = callback.f_back
    if caller is None:
        raise KeyboardInterrupt
    caller.f_trace = _raise
    sys.settrace(_ignore)  # without it, no frame is traced


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, in a callback of compiled code once that has returned."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _CALLBACKS:
            raise_in_caller(frame)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _raise(_frame: FrameType, _event: str, _value: Any) -> None:
    """Trace the caller: its next line or its return is interrupted, and the tracing ends with the exception."""
    raise KeyboardInterrupt


def _ignore(_frame: FrameType, _event: str, _value: Any) -> None:
    """Trace no frame that is entered meanwhile."""
