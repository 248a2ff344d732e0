"""Numbers for the ids of jobs. None is used twice, not even after a backup of the state folder is restored."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from berth.errors import InputError

_FILE = "last-id"


class Ids:
    """The highest number in use, in a file of the work folder.

    The file is locked, so that two controllers never share a work folder (each would stop the attempts of the other),
    even if the state folder is replaced by a copy while a controller is up.
    """

    def __init__(self, work: Path | None = None) -> None:
        self._last, self._file = 0, None if work is None else _locked(work)
        if self._file is not None:
            try:
                self._last = int(os.pread(self._file, 32, 0))
            except ValueError:  # new, or damaged: the journal has a number too
                os.ftruncate(self._file, 0)  # else its rest would follow the next number

    def after(self, number: int) -> int:
        """Return the next number after this one and after all that were used."""
        self._last = max(self._last, number) + 1
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: the journal refuses the job, too
                # numbers only grow, so nothing of the last one remains
                os.pwrite(self._file, f"{self._last}\n".encode(), 0)
        return self._last

    def close(self) -> None:
        """Release the work folder for another controller."""
        if self._file is not None:
            os.close(self._file)


def _locked(work: Path) -> int:
    try:
        file = os.open(work / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(
            f"can't be written: {error.strerror}",
            where=str(work / _FILE),
            hint="make it writable, or name another folder with --work",
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise InputError(
            "another controller uses this work folder",
            where=str(work),
            hint="its state folder was moved or replaced while it was up: stop that controller first",
        ) from None
    except OSError:
        pass  # a file system without locks
    return file
