"""For the code of a job: reports step times to berth in three lines.

    from berth.job import finished, steps

    for batch in steps(loader):     # times every step and reports the mean every few seconds
        train(batch)
    finished()                      # optional: marks the work as done, even if a signal arrives now

Outside of berth these functions do nothing. They need only the standard library.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_EVERY_S = 5.0
_FOLDER, _RANK = "BERTH_FOLDER", "RANK"


def steps(work: Iterable[T], *, every_s: float = _EVERY_S) -> Iterator[T]:
    """Yield the items of `work`; rank 0 of the gang reports the mean time per item."""
    if _folder() is None or os.environ.get(_RANK, "0") != "0":
        yield from work
        return
    begin, count = time.monotonic(), -1  # the first step warms up and is not counted
    for item in work:
        yield item
        count += 1
        now = time.monotonic()
        if count == 0:
            begin = now
        elif now - begin >= every_s:
            report(count, (now - begin) / count)
            begin, count = now, 0
    if count > 0:
        report(count, (time.monotonic() - begin) / count)


def report(count: int, seconds: float) -> None:
    """Report that `count` steps took `seconds` each."""
    folder = _folder()
    if folder is not None and count > 0:
        with (folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps({"count": count, "seconds": seconds}) + "\n")


def finished() -> None:
    """Mark the work as done: the job is not run again, however this process ends."""
    folder = _folder()
    if folder is not None:
        (folder / "done").touch()


def _folder() -> Path | None:
    name = os.environ.get(_FOLDER)
    return Path(name) if name else None
