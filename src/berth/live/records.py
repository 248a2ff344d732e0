"""What can stand in the journal: one kind of record for everything that changes the state.

Things that happened: `opened`, `submitted`, `cancelled`, `prioritised`, `machine`, `foreign`, `launch`, `started`,
`exited`, `ready`, `learned`. And what was decided: `pass` (its body says how many decisions follow), then `start`,
`evict` and `move`, one record each. Bodies are plain JSON; numbers come back from it as they went in, to the bit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DECISIONS = ("start", "evict", "move")
# what keeps a machine from taking jobs: it is gone, its people drained it here, or the engine has closed it
LOST, DRAINED, CLOSED = "lost", "drained", "closed"
QUIET = ("launch", "started", "pass", *DECISIONS)  # records after which a pass would find nothing new


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal."""

    time: float
    kind: str
    job: str | None = None
    body: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The body as it is stored."""
        return json.dumps(self.body, separators=(",", ":"), allow_nan=True)


def read(time: float, kind: str, job: str | None, line: str) -> Record:
    """The record that was stored."""
    return Record(time, kind, job, json.loads(line))
