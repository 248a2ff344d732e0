"""Adds the place in a policy's own file to errors that pass through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from berth.schedule.checks import own_place
from berth.schedule.failures import RAISED
from berth.schedule.policy import Policy
from berth.schedule.source import is_own


@contextmanager
def located(policy: Policy) -> Iterator[None]:
    """Adds a note to what a user's policy raises in `prepare`, `timers` or `table`."""
    try:
        yield
    except Exception as error:
        place = own_place(error, type(policy))
        noted = any(note.startswith(RAISED) for note in getattr(error, "__notes__", ()))
        if is_own(type(policy)) and place and not noted:
            error.add_note(f"{RAISED} {type(policy).__name__}, {place}")
        raise
