"""Named moments at which a test may end the process, as a power cut would.

`BERTH_TRAIN_FAULT="name@3"` kills this process (SIGKILL) the third time it comes to that moment. Where a launcher
started several, `"name@3/worker1"` means one of them, in its first life.
"""

from __future__ import annotations

import os
import signal

MOMENTS = (
    "step",
    "checkpoint: snapshot taken",
    "checkpoint: folder made",
    "checkpoint: a part half written",
    "checkpoint: parts written",
    "checkpoint: manifest written",
    "checkpoint: manifest renamed",
    "checkpoint: old ones removed",
    "server: step ended",
)
VARIABLE = "BERTH_TRAIN_FAULT"
NAME = "BERTH_TRAIN_NAME"  # who a process is and which start of it, as `worker1/2`

_met: dict[str, int] = {}


def moment(name: str) -> None:
    """Nothing, unless a test asked for an end here."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _met[name] = _met.get(name, 0) + 1
    when, _, who = wanted.partition("/")
    if who and f"{who}/1" != os.environ.get(NAME):
        return
    if when == f"{name}@{_met[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
