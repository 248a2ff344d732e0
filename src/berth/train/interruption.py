"""Requests to stop, handled between two steps.

SIGTERM and the first Ctrl-C (SIGINT) request a checkpoint and a regular end; after Ctrl-C `Stopped` is raised. A second
Ctrl-C exits at once.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A run ended between two steps because of Ctrl-C; with a checkpoint folder, that step is saved."""

    def __init__(self, step: int, saved: bool) -> None:
        super().__init__(f"stopped after step {step:,}{', which is saved' if saved else ''}")
        self.step = step
        self.saved = saved


class Interruption:
    """Handles signals while a run trains; only in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.by_keyboard = False  # Ctrl-C
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.by_keyboard:
                raise KeyboardInterrupt
            self.by_keyboard = True
        self.requested = True
