"""For a job's own code: three lines that teach berth how long a step takes where the job runs.

    from berth.job import finished, steps

    for batch in steps(loader):     # times every step and reports the mean now and then
        train(batch)
    finished()                      # optional: says that the work is done, even if a signal comes now

Outside of berth all of this does nothing. It needs nothing but Python.
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
    """Passes `work` through; the first process of the gang reports how long each item took."""
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
    """So many steps took so long each."""
    folder = _folder()
    if folder is not None and count > 0:
        with (folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps({"count": count, "seconds": seconds}) + "\n")


def finished() -> None:
    """The work is done: whatever happens to this process now, it need not be run again."""
    folder = _folder()
    if folder is not None:
        (folder / "done").touch()


def _folder() -> Path | None:
    name = os.environ.get(_FOLDER)
    return Path(name) if name else None
