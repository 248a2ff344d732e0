"""Named points at which a test can kill the process, as a power failure would.

`BERTH_TRAIN_FAULT="name@3"` kills this process (SIGKILL) at the third passage of a point. Under a launcher,
`"name@3/worker1"` selects one process, before its first restart, and `"name@3/worker1/parent"` kills the launcher then;
under torchrun and Slurm workers are called `rank1`.
With `BERTH_TRAIN_FAULT_AFTER=FILE` the kill waits until that file exists, such as the manifest of a checkpoint that is
written in the background.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

FAULT_POINTS = (
    "step",
    "checkpoint: snapshot taken",
    "checkpoint: folder made",
    "checkpoint: a part half written",
    "checkpoint: parts written",
    "checkpoint: manifest written",
    "checkpoint: manifest renamed",
    "checkpoint: old ones removed",
    "server: shard written",
    "server: step ended",
)
VARIABLE = "BERTH_TRAIN_FAULT"
AFTER = "BERTH_TRAIN_FAULT_AFTER"
NAME = "BERTH_TRAIN_NAME"  # name and attempt of a process, as `worker1/2`

_passed: dict[str, int] = {}


def name_process(name: str) -> None:
    """Name this process for a test that requests a kill, unless its launcher has."""
    if VARIABLE in os.environ:
        os.environ.setdefault(NAME, name)


def fault_point(name: str) -> None:
    """Do nothing, unless a test requested a kill here."""
    requested = os.environ.get(VARIABLE)
    if requested is None:
        return
    _passed[name] = _passed.get(name, 0) + 1
    point, process, victim = (*requested.split("/"), "", "")[:3]
    if process and f"{process}/1" != os.environ.get(NAME):
        return
    if point == f"{name}@{_passed[name]}":
        while AFTER in os.environ and not Path(os.environ[AFTER]).exists():
            time.sleep(0.01)
        os.kill(os.getppid() if victim == "parent" else os.getpid(), signal.SIGKILL)
