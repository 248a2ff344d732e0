"""Callbacks of a run: methods that get plain data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

EVENTS = ("on_step", "on_evaluation", "on_checkpoint")


class Callback:
    """Base class of callbacks; any object with some of these methods will do. An exception ends the run.

    With several processes they are called in the process of the `Trainer`, in order, for rank 0. After a restart the
    steps since the last checkpoint are reported again.
    """

    def on_step(self, metrics: Mapping[str, Any]) -> None:
        """Handle the end of a step: `step`, `examples`, `loss` and `learning_rate` (None without dense weights)."""

    def on_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """Handle an evaluation: `step`, the fields of `Evaluation`, `calibration`, and whether it is the `best`."""

    def on_checkpoint(self, info: Mapping[str, Any]) -> None:
        """Handle a complete checkpoint: its `step` and `folder`, and whether it is that of the `best` evaluation."""


def as_callbacks(given: Any) -> list[Any]:
    """Return one or several callbacks as a list."""
    return list(given) if isinstance(given, Iterable) else [] if given is None else [given]


def wanted_events(callbacks: Sequence[Any]) -> list[str]:
    """Return the events that any callback handles."""
    return [event for event in EVENTS if any(_handler(one, event) for one in callbacks)]


def notify_all(callbacks: Sequence[Any], event: str, data: Mapping[str, Any]) -> None:
    """Call every callback that handles the event."""
    for one in callbacks:
        handler = _handler(one, event)
        if handler is not None:
            handler(data)


def _handler(callback: Any, event: str) -> Any:
    own = getattr(callback, event, None)
    is_default = getattr(type(callback), event, None) is getattr(Callback, event, None)
    return None if own is None or is_default else own


class EventPipe:
    """Writes events as JSON lines to a named pipe, for the process that started the run."""

    def __init__(self, path: Path, events: Iterable[str]) -> None:
        self._pipe = os.open(path, os.O_WRONLY)
        for event in events:
            setattr(self, event, lambda data, event=event: self.send(event, data))

    def send(self, event: str, data: Any) -> None:
        """Write an event; waits while the reader is behind. One that has ended gets none, and the run can be saved."""
        line = json.dumps([event, data]).encode() + b"\n"
        with suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._pipe, line) :]
