"""For which run all checkpoints of a folder were deleted.

A job may start several runs with --fresh in one folder: several commands, or several fits of one script. They are
numbered in the order in which an attempt of the job starts them. A restart keeps the checkpoints of the run with its
own number only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from berth.train.checkpoint.manifest import sync_folder

if TYPE_CHECKING:
    from berth.train.started_by import StartedBy

NAME = ".cleared-for"
_started: Counter[Path] = Counter()  # by folder: the runs that this process has started with --fresh


@dataclass(frozen=True, slots=True)
class ClearedFor:
    """The run for which checkpoints were deleted."""

    job: str = ""
    attempt: str = ""  # of the job; the last that used the checkpoints
    program: str = ""
    before: int = 0  # runs of other programs of that attempt before it
    number: int = 1  # among the runs of that attempt

    def holds_checkpoints_of(self, run: ClearedFor, *, is_restart: bool) -> bool:
        """Whether checkpoints deleted since are those of an earlier attempt of `run`."""
        is_same_job = is_restart and self.job != "" and self.job == run.job
        return self.number == run.number and (is_same_job or self.program == run.program)


def next_run(root: Path, last: ClearedFor, by: StartedBy) -> ClearedFor:
    """Return the next run that this process starts with --fresh in a folder, after that of the last note there."""
    folder = root.resolve()
    _started[folder] += 1
    before = 0
    if by.job and (last.job, last.attempt) == (by.job, by.attempt):
        before = last.before if last.program == by.program else last.number
    return ClearedFor(by.job, by.attempt, by.program, before, before + _started[folder])


def read_note(root: Path) -> ClearedFor:
    """Return the run of the note in a folder; earlier versions wrote the name of the job alone."""
    try:
        text = (root / NAME).read_text(encoding="utf-8").strip()
    except OSError:
        return ClearedFor()
    try:
        return ClearedFor(**json.loads(text))
    except (ValueError, TypeError):
        return ClearedFor(job=text)


def write_note(root: Path, run: ClearedFor) -> None:
    """Write the note of a folder; it survives a power failure."""
    temporary = root / f"{NAME}.new"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(root / NAME)
    sync_folder(root)
