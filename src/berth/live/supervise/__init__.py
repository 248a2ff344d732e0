"""Runs the processes of a gang on one machine and reports in files what becomes of them. Needs nothing but Python.

    python -I -S supervise FOLDER [MACHINE [DEVICES [LIFELINE]]]

FOLDER has `launch.json` and is shared by the controller and every machine of the gang. Without MACHINE all members run
here. DEVICES: the engine's own names of the gang's devices on this machine. LIFELINE: a file descriptor of a pipe; when
its other end is closed, all processes are killed at once. Reports are files that are written atomically:

    PART.ready    this part is here (a gang of several parts starts only when all are)
    PART.running  its processes run
    PART.ended    they have ended: exit codes, whether they were stopped, whether the job reported that it finished
    stop          written by the controller: end now, or never start
    failed        written by the part that failed: the others end too
    PART.fenced   written by the controller: this machine is given up; its processes are killed at once

The holder of a part's lock runs it; a second start does nothing. All processes of a member are ended together, also
those that left its process group or cleared their environment: this process is a subreaper. It consists of two
processes: if the one that runs the part is killed, its parent adopts its children, kills them and reports it. An end is
written only when no process of the part is left.
"""

from __future__ import annotations

import fcntl
import os
import signal
import traceback
from pathlib import Path

from .part import PLAN, Part
from .processes import adopt_orphans, die_with_parent

__all__ = ["PLAN", "main"]


def main(folder: str, machine: str = "", devices: str = "", lifeline: str = "") -> None:
    """Run one part, unless it runs or has ended."""
    adopt_orphans()
    part = Part(Path(folder), machine, devices, lifeline)
    lock = os.open(part.folder / f"{part.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    if (part.folder / f"{part.name}.ended").exists():
        return
    if (part.folder / f"{part.name}.ready").exists():
        part.reap_orphans()
        return
    parent = os.getpid()
    child = os.fork()
    if child:
        part.keep(child)
    else:
        _run(part, parent)


def _run(part: Part, parent: int) -> None:
    """In the child: run the part, and die with the parent."""
    code = 1
    try:
        adopt_orphans()
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        if os.getppid() == parent:
            part.run()
            code = 0
    except BaseException:  # noqa: BLE001 - the parent handles it
        traceback.print_exc()
    finally:
        os._exit(code)
