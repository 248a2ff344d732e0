"""Ctrl-C while compiled code runs.

Python handles a signal before its next bytecode. If a compiled function returns an array, that is in a callback in
which numba looks up the array's type. Numba does not check whether the callback has failed: an exception there ends
the process with a segmentation fault or a SystemError. So Ctrl-C in the callback interrupts the caller of the
compiled function.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from berth.__main__ import INTERRUPTED

_CALLBACK = ("numba.core.serialize", "_numba_unpickle")


def interrupt_safely() -> None:
    """Install the handler of Ctrl-C, unless Ctrl-C is ignored or handled already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def report_interrupt(kept: Callable[[], str] | None = None) -> Iterator[None]:
    """After Ctrl-C, print that the command has stopped, with what is `kept`, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped" if kept is None else f"stopped; {kept()}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, in a callback of compiled code once that has returned."""
    inner = frame
    while inner is not None and (inner.f_globals.get("__name__"), inner.f_code.co_name) != _CALLBACK:
        inner = inner.f_back
    caller = None if inner is None else inner.f_back
    if caller is None:
        raise KeyboardInterrupt
    caller.f_trace = _raise
    sys.settrace(_ignore)  # without it, no frame is traced


def _raise(_frame: FrameType, _event: str, _value: Any) -> None:
    """Trace the caller: its next line or its return is interrupted, and the tracing ends with the exception."""
    raise KeyboardInterrupt


def _ignore(_frame: FrameType, _event: str, _value: Any) -> None:
    """Trace no frame that is entered meanwhile."""
