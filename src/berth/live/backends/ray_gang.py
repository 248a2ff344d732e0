"""A gang as its folder tells it: its parts, whether it may still begin, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass

from berth.live.backend import AttemptStatus
from berth.live.folder import Folder
from berth.live.lifecycle import Cause


@dataclass(frozen=True, slots=True)
class Part:
    """The members of a gang on one machine."""

    machine: str
    gpus: int
    runner: str  # the actor's name


def parts_of(folder: Folder) -> tuple[Part, ...] | None:
    """What was launched; None: nothing was."""
    try:
        launch = json.loads((folder.path / "launch.json").read_text())
    except FileNotFoundError:
        return None
    gpus: dict[str, int] = {}
    for member in launch["members"]:
        gpus[member["machine"]] = gpus.get(member["machine"], 0) + len(member["devices"])
    return tuple(Part(name, count, f"{folder.token}@{name}") for name, count in gpus.items())


def fenced(folder: Folder) -> bool:
    """Whether no part of it may begin any more."""
    return folder.stopped or (folder.path / "failed").exists()


def give_up(folder: Folder, at: int | None = None) -> None:
    """The gang ends, with its grace; a part whose machine is gone without."""
    if at is not None:
        (folder.path / f"part-{at}.fenced").touch()
    (folder.path / "failed").touch()


def end_of(folder: Folder, *, whole: bool, cause: Cause, detail: str = "") -> AttemptStatus:
    """The end of a gang; unless the `whole` of it has told, nobody knows how it went."""
    if whole:
        seen = folder.seen(together=False)
        assert seen is not None
        return seen
    done = (folder.path / "done").exists()
    return AttemptStatus("ended", stopped=folder.stopped, done=done, lost=True, cause=cause, detail=detail)
