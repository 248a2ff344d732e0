"""Processes of one machine, as /proc shows them: their descendants, the memory they use, and how they are ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Make this process die with its parent, even if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare_child() -> None:
    """In a child, before its command: block no signal, and die with the parent."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    die_with_parent()


def send_signal(pid: int, number: int) -> None:
    """Send a signal to the process group that a process leads, else to the process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none if it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants_of(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for one in found:
        found += children_of(one)
    return found


def with_token(token: str) -> list[int]:
    """Return all processes that were started under a token."""
    # older versions set BERTH_TOKEN, and their processes may still run
    marks = {f"{name}={token}".encode() for name in ("BERTH_ATTEMPT_TOKEN", "BERTH_TOKEN")}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                stopped = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not stopped and not marks.isdisjoint((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory that a process uses; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
