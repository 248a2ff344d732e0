"""The folder of an attempt: what is to run is written there, and what became of it is read there.

The other side is `supervise.py`, on whatever machine it runs. Both need nothing but a folder they share.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from berth.live import supervise
from berth.live.backend import Launch, Seen
from berth.live.causes import Cause
from berth.live.private import make_folders

SUPERVISE = Path(supervise.__file__)
LIVE, ENDED = "live", "ended"


def tokens_in(root: Path) -> list[str]:
    """Attempts whose end is not on record yet."""
    try:
        return [entry.name for entry in os.scandir(root / LIVE) if entry.is_dir()]
    except FileNotFoundError:
        return []


class Folder:
    """The folder of one attempt."""

    def __init__(self, root: Path, token: str) -> None:
        self.token = token
        self.path = root / LIVE / token
        self._ended = root / ENDED / token

    def prepare(self, launch: Launch, *, address: str | None = None) -> bool:
        """Writes what is to run; False: it was written, stopped or ended before."""
        if self._bring_back():
            return False
        make_folders(self.path)
        target = self.path / "launch.json"
        if target.exists() or self.stopped:
            return False
        write_whole(target, json.dumps(asdict(launch) | {"address": address}))
        return True

    def stop(self) -> None:
        """From now on it ends, or never begins."""
        if self._bring_back():
            return
        make_folders(self.path)
        (self.path / "stop").touch()

    def _bring_back(self) -> bool:
        """Shows an end once more that was put away; False: there is none.

        The journal still has the attempt, so it has lost the record of its end: it was set back to a backup.
        """
        if not self._ended.exists():
            return False
        make_folders(self.path.parent)
        self._ended.rename(self.path)
        return True

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return (self.path / "stop").exists()

    @property
    def launched(self) -> bool:
        """Whether it was written what is to run."""
        return (self.path / "launch.json").exists()

    def never_began(self) -> Seen | None:
        """The end of an attempt that was stopped before it was launched; None: it may still be launched."""
        return Seen("ended", stopped=True, lost=True, cause=Cause.STOPPED) if self.stopped else None

    def devices(self) -> dict[str, list[int]] | None:
        """Return the devices that it was launched on, by machine; None if that can't be read."""
        try:
            members = json.loads((self.path / "launch.json").read_text())["members"]
            found: dict[str, list[int]] = {}
            for member in members:
                found.setdefault(member["machine"], []).extend(member["devices"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found

    def parts(self, *, together: bool) -> int:
        """How many supervisors it needs: one, or one for each machine."""
        if together:
            return 1
        launch = json.loads((self.path / "launch.json").read_text())
        return len({member["machine"] for member in launch["members"]})

    def held(self, part: int = 0) -> bool:
        """Whether a supervisor on this machine has the part."""
        try:
            lock = os.open(self.path / f"part-{part}.lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def told(self, part: int, what: str) -> dict[str, Any] | None:
        """What a part said: `ready`, `running` or `ended`; None: nothing yet."""
        try:
            return dict(json.loads((self.path / f"part-{part}.{what}").read_text()))
        except FileNotFoundError:
            return None

    def seen(self, *, together: bool = True) -> Seen | None:
        """What the parts have said so far, put together; None: it was never launched."""
        if not self.launched:
            return self.never_began()
        parts = range(self.parts(together=together))
        ended = [self.told(part, "ended") for part in parts]
        if all(end is not None for end in ended):
            return together_seen([end for end in ended if end is not None])
        if all(self.told(part, "running") is not None for part in parts):
            return Seen("running")
        return Seen("starting")

    def put_away(self) -> None:
        """Its end is on record: it is kept for its logs, and so that nothing starts under its token again."""
        make_folders(self._ended.parent)
        if self.path.exists():
            self.path.rename(self._ended)

    def log(self, rank: int) -> Path:
        """Where the output of a member is."""
        name = f"rank-{int(rank)}.log"
        return (self._ended if self._ended.exists() else self.path) / name


def together_seen(ends: list[dict[str, Any]]) -> Seen:
    """The end of a gang, from the ends of its parts. Where one part knows nothing, it has not gone well for all."""
    codes = {int(rank): int(code) for end in ends for rank, code in end["codes"].items()}
    if not any(codes.values()) and not all(end["codes"] for end in ends):
        codes = {}
    return Seen(
        "ended",
        codes=tuple(codes[rank] for rank in sorted(codes)),
        code=_first_code(ends),
        stopped=any(end.get("stopped") for end in ends),
        done=any(end.get("done") for end in ends),
        lost=not codes or any(end.get("lost") for end in ends),
        cause=_first_cause(ends),
    )


def _first_cause(ends: list[dict[str, Any]]) -> Cause | None:
    """The cause of the part that ended first; parts that end because another did have none."""
    told = sorted((end.get("time", math.inf), end["cause"]) for end in ends if end.get("cause"))
    own = [cause for _, cause in told if cause != Cause.STOPPED] or [cause for _, cause in told]
    return Cause(own[0]) if own and own[0] in list(Cause) else None


def _first_code(ends: list[dict[str, Any]]) -> int | None:
    """The exit code of the gang: that of the process that failed first."""
    told = [(end["time"], end["code"]) for end in ends if end.get("code") is not None]
    failed = sorted(one for one in told if one[1])
    return int(failed[0][1]) if failed else (0 if told else None)


def write_whole(path: Path, text: str) -> None:
    """A file that is there whole or not at all, whatever is killed when."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
