"""The records of the journal: one kind for every change of the state.

Events: `opened`, `submitted`, `cancelled`, `prioritised`, `machine`, `external`, `launch`, `started`, `exited`,
`ready`, `learned`, `paused`, `resumed`. Decisions: `pass` (its body has their number), followed by `start`, `evict` and
`move`, one record each. Bodies are JSON; numbers are read back exactly.

Each record has the version of its form in `v`. Older records are converted when they are applied (`upcast`); newer ones
are refused. Versions:

1. no `v`; a submission names its model, which may be the path of a file
2. a submission has the numbers of its job's profile
3. `opened` has an epoch, which is part of the tokens of the attempts that follow
4. `external` was called `foreign` before
5. a submission may have alternatives and plans; a start then has the name of its shape, and its seats their parts
6. an exit may have the time at which the processes ended; a job whose command can't be started is tried twice
7. a start or an exit may have the time at which the processes began
8. `paused` and `resumed`: a policy fails, and no longer fails; no pass runs in between
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from berth.errors import InputError
from berth.live.profiles import journalled_numbers

VERSION = 8
_RENAMED = {"foreign": "external"}  # before version 4
DECISIONS = ("start", "evict", "move")
# why a machine takes no jobs: it is lost, it was drained in berth, or the engine has closed it
LOST, DRAINED, CLOSED = "lost", "drained", "closed"
QUIET = ("launch", "started", "pass", *DECISIONS)  # records after which no pass is needed


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the journal."""

    time: float
    kind: str
    job: str | None = None
    body: dict[str, Any] = field(default_factory=dict)
    v: int = VERSION

    def line(self) -> str:
        """Return the body as it is stored."""
        return json.dumps({"v": self.v, **self.body}, separators=(",", ":"), allow_nan=True)


def read(time: float, kind: str, job: str | None, line: str) -> Record:
    """Return the record that was stored, in its original form but with the current name of its kind."""
    body = json.loads(line)
    return Record(time, _RENAMED.get(kind, kind), job, body, body.pop("v", 1))


def upcast(record: Record) -> Record:
    """Return a record in today's form."""
    if record.v == VERSION:
        return record
    if record.v > VERSION:
        raise InputError(
            f"the journal has records of version {record.v}, this berth knows up to {VERSION}",
            hint="start it with the berth that wrote it, or a newer one",
        )
    body = record.body
    if record.kind == "submitted" and record.v < 2:
        assert record.job is not None
        body = body | {"profile": journalled_numbers(record.job, body["spec"].get("model"))}
    return replace(record, body=body, v=VERSION)
