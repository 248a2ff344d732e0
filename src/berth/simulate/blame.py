"""What a policy's own function raises stops the run and is told with its place in the policy's file.

Compiled code can't raise through the engine: Python is told of the error as one that nobody can catch, and
the run would go on with a made-up answer. So those reports are heard here, and raised at the next halt.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.schedule.hooks import raise_pending
from berth.schedule.policy import SIGNATURES, Policy

RAISED = "raised by the policy"


@contextmanager
def heard(policy: Policy) -> Iterator[Callable[[], None]]:
    """Yields a function that raises what the policy's functions raised since; errors get a note of where."""
    errors: list[BaseException] = []
    before = sys.unraisablehook

    def hear(report: Any) -> None:
        # Of compiled functions only their context's name is known; anything else is somebody else's.
        if isinstance(report.object, str) and report.exc_value is not None:
            errors.append(report.exc_value)
        else:
            before(report)

    def check() -> None:
        try:
            raise_pending()
        except Exception as error:
            errors.append(error)
            raise
        if errors:
            raise errors[0]

    sys.unraisablehook = hear
    try:
        yield check
    except Exception as error:
        place = _place(error, policy)
        if _is_own(policy) and (place or error in errors):
            error.add_note(f"{RAISED} {type(policy).__name__}, {place or _somewhere(policy)}")
        raise
    finally:
        sys.unraisablehook = before


def _is_own(policy: Policy) -> bool:
    """Whether it is a user's, not one of those that come with berth."""
    return not type(policy).__module__.startswith("berth.")


def _place(error: Exception, policy: Policy) -> str | None:
    """`mine.py:12`, if the error passed through the policy's file."""
    file = Path(inspect.getsourcefile(type(policy)) or "").resolve()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve() == file]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _somewhere(policy: Policy) -> str:
    """Compiled code keeps few line numbers: the functions that it may have been."""
    own = ", ".join(name for name in SIGNATURES if name in vars(type(policy)))
    file = inspect.getsourcefile(type(policy))
    return f"{file}: in {own} (the line is not known)"
