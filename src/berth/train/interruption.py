"""A wish to stop: heard at once, granted between two steps.

SIGTERM asks for a checkpoint and a quiet end. So does the first Ctrl-C (SIGINT), after which `Stopped` is raised once
all is safe; a second one does not wait for anything.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A training ended between two steps because of Ctrl-C; if it has a folder, that step is saved."""

    def __init__(self, step: int, saved: bool) -> None:
        super().__init__(f"stopped after step {step:,}{', which is saved' if saved else ''}")
        self.step = step
        self.saved = saved


class Interruption:
    """Whether somebody wants an end; only the main thread can hear it."""

    def __init__(self) -> None:
        self.heard = False
        self.by_key = False  # Ctrl-C
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.by_key:
                raise KeyboardInterrupt
            self.by_key = True
        self.heard = True
