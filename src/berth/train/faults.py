"""Named moments at which a test may end the process, as a power cut would.

`BERTH_TRAIN_FAULT="name@3"` kills this process (SIGKILL) the third time it comes to that moment.
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
)
VARIABLE = "BERTH_TRAIN_FAULT"

_met: dict[str, int] = {}


def moment(name: str) -> None:
    """Nothing, unless a test asked for an end here."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _met[name] = _met.get(name, 0) + 1
    if wanted == f"{name}@{_met[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
