"""The folder of an attempt: the back end writes its launch there and reads its end.

The other side is `supervise` on the machine of the gang. The two share nothing but this folder.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from berth.live import supervise
from berth.live.backend import AttemptStatus, Launch
from berth.live.lifecycle import Cause
from berth.live.private import make_folders

SUPERVISE = Path(supervise.__file__).parent
LIVE, ENDED = "live", "ended"
PLAN = supervise.PLAN


def archive_supervisor(root: Path) -> Path:
    """Write the supervisor as one file into a folder that all machines see, so that they need no berth; return it."""
    target, buffer = root / "supervise.pyz", io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in sorted(SUPERVISE.glob("*.py")):
            name = file.name if file.name == "__main__.py" else f"{SUPERVISE.name}/{file.name}"
            # without its time: the same bytes each time
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes())
    if not target.exists() or target.read_bytes() != buffer.getvalue():
        write_whole(target, buffer.getvalue())
    return target


def tokens_in(root: Path) -> list[str]:
    """Return the attempts whose end is not recorded yet."""
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
        """Write the launch; return False if it was written, stopped or ended before."""
        if self._unarchive():
            return False
        make_folders(self.path)
        target = self.path / "launch.json"
        if target.exists() or self.stopped:
            return False
        if launch.plan is not None:
            write_whole(self.path / PLAN, launch.plan)
        write_whole(target, json.dumps(asdict(launch) | {"address": address}))
        return True

    def stop(self) -> None:
        """Stop the attempt, or keep it from starting."""
        if self._unarchive():
            return
        make_folders(self.path)
        (self.path / "stop").touch()

    def _unarchive(self) -> bool:
        """Show an archived end again; return whether there is one.

        The journal still has the attempt, so it has lost the record of its end: a backup was restored.
        """
        if not self._ended.exists():
            return False
        make_folders(self.path.parent)
        self._ended.rename(self.path)
        return True

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return (self.path / "stop").exists()

    @property
    def launched(self) -> bool:
        """Whether its launch was written."""
        return (self.path / "launch.json").exists()

    def never_began(self) -> AttemptStatus | None:
        """Return the end of an attempt that was stopped before it was launched; None if it may still be launched."""
        return AttemptStatus("ended", stopped=True, lost=True, cause=Cause.STOPPED) if self.stopped else None

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
        """Return how many supervisors it needs: one, or one for each machine."""
        if together:
            return 1
        launch = json.loads((self.path / "launch.json").read_text())
        return len({member["machine"] for member in launch["members"]})

    def held(self, part: int = 0) -> bool:
        """Return whether a supervisor on this machine runs the part."""
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

    def report(self, part: int, what: str) -> dict[str, Any] | None:
        """Return what a part reported (`ready`, `running` or `ended`); None if nothing yet."""
        try:
            return dict(json.loads((self.path / f"part-{part}.{what}").read_text()))
        except FileNotFoundError:
            return None

    def seen(self, *, together: bool = True) -> AttemptStatus | None:
        """Return the status that the reports of the parts amount to; None if it was never launched."""
        if not self.launched:
            return self.never_began()
        parts = range(self.parts(together=together))
        ended = [self.report(part, "ended") for part in parts]
        began = [self.report(part, "running") for part in parts]
        if all(end is not None for end in ended):
            return replace(gang_end([end for end in ended if end is not None]), began=_last_time(began))
        if all(report is not None for report in began):
            return AttemptStatus("running", began=_last_time(began))
        return AttemptStatus("starting")

    def archive(self) -> None:
        """Keep the folder of a recorded end, for its logs and so that its token never starts again."""
        make_folders(self._ended.parent)
        if self.path.exists():
            self.path.rename(self._ended)

    def log(self, rank: int) -> Path:
        """Return the path of the output of a member."""
        return self._kept / f"rank-{int(rank)}.log"

    @property
    def steps(self) -> Path:
        """Return the path of the step times that the job reports."""
        return self._kept / "steps.jsonl"

    def processes(self) -> int | None:
        """Return how many processes it has; None if its launch is not known."""
        try:
            return len(json.loads((self._kept / "launch.json").read_text())["members"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def _kept(self) -> Path:
        return self._ended if self._ended.exists() else self.path


def gang_end(ends: list[dict[str, Any]]) -> AttemptStatus:
    """Return the end of a gang, from the ends of its parts; a part without exit codes counts as not successful."""
    codes = {int(rank): int(code) for end in ends for rank, code in end["codes"].items()}
    cause = _first_cause(ends)
    if not any(codes.values()) and not all(end["codes"] for end in ends):
        codes = {}
    return AttemptStatus(
        "ended",
        codes=tuple(codes[rank] for rank in sorted(codes)),
        code=_first_code(ends),
        stopped=any(end.get("stopped") for end in ends),
        done=any(end.get("done") for end in ends),
        lost=not codes or any(end.get("lost") for end in ends),
        cause=cause,
        detail=_detail(ends, cause),
        ended=_last_time(ends),
    )


def _last_time(reports: Sequence[Mapping[str, Any] | None]) -> float | None:
    """Return the time of the last report of all parts; None if one has none."""
    times = [float(one["time"]) for one in reports if one is not None and "time" in one]
    return max(times) if times and len(times) == len(reports) else None


def _detail(ends: list[dict[str, Any]], cause: Cause | None) -> str:
    """Return what the parts that ended for this cause say about it."""
    said = (str(end["error"]) for end in ends if end.get("error") and end.get("cause") == cause)
    return next(said, "")


def _first_cause(ends: list[dict[str, Any]]) -> Cause | None:
    """Return the cause of the part that ended first; parts that end because another did have none."""
    causes = sorted((end.get("time", math.inf), end["cause"]) for end in ends if end.get("cause"))
    own = [cause for _, cause in causes if cause != Cause.STOPPED] or [cause for _, cause in causes]
    return Cause(own[0]) if own and own[0] in list(Cause) else None


def _first_code(ends: list[dict[str, Any]]) -> int | None:
    """Return the exit code of the process that failed first, else 0."""
    codes = [(end["time"], end["code"]) for end in ends if end.get("code") is not None]
    failed = sorted(one for one in codes if one[1])
    return int(failed[0][1]) if failed else (0 if codes else None)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
