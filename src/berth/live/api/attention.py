"""What someone on call looks at first: recent failures and evictions, machines that take no jobs, a silent back end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from berth.live.controller import Controller
from berth.live.home import JOURNAL
from berth.live.lifecycle import FAILED, sentence
from berth.live.records import Record
from berth.live.store import connect

_FAILED_S, _EVICTED_S = 86_400.0, 3_600.0
_LISTED = 20  # failed jobs
_NEAR = 50_000  # records before the last one in which recent evictions are looked for
_FAILURES = "SELECT facts FROM over WHERE state = ? AND ended > ? ORDER BY ended DESC LIMIT ?"
_FAILURE_COUNT = "SELECT count(*) FROM over WHERE state = ? AND ended > ?"
_EVICTIONS = "SELECT job FROM journal WHERE seq > ? AND kind = 'evict' AND time > ? ORDER BY seq DESC"
_MACHINES = "SELECT time, body FROM journal WHERE seq >= ? AND kind = 'machine' ORDER BY seq DESC"
Change = tuple[int, str]  # a machine by number, and why it takes no jobs


class Attention:
    """Problems of one cluster, and since when."""

    def __init__(self, controller: Controller, first: int) -> None:
        self._controller, self._first = controller, first
        self._changes: dict[Change, tuple[float, str | None]] = {}  # since when, and by which user
        controller.listeners.append(lambda _, records: self._note(records))

    def _note(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.kind == "machine":
                body = record.body
                self._changes[body["machine"], body["why"]] = record.time, body.get("by")

    def report(self) -> dict[str, Any]:
        """Return all problems; empty lists and zeros if there are none."""
        controller = self._controller
        with controller.lock:
            now, seq = controller.now(), controller.store.seq
            machines = [
                (index, why) for index, reasons in enumerate(controller.state.unavailable) for why in reasons
            ]
            names = [machine.name for machine in controller.state.cluster.machines]
            trouble, blockers = controller.observer.error, controller.blockers()
        db = connect(controller.store.folder / JOURNAL, read_only=True)
        try:
            self._find(db, [one for one in machines if one not in self._changes])
            evicted = [row[0] for row in db.execute(_EVICTIONS, (seq - _NEAR, now - _EVICTED_S))]
            return {
                "time": now,
                "failed": _failures(db, now - _FAILED_S),
                "evicted": {"count": len(evicted), "jobs": list(dict.fromkeys(evicted))[:_LISTED]},
                "machines": [self._machine(names, one) for one in machines],
                "trouble": trouble,
                "warnings": [one.to_dict() for one in blockers],
            }
        finally:
            db.close()

    def _machine(self, names: Sequence[str], change: Change) -> dict[str, Any]:
        since, by = self._changes.get(change, (None, None))
        return {"machine": names[change[0]], "why": change[1], "since": since, "by": by}

    def _find(self, db: sqlite3.Connection, unknown: Sequence[Change]) -> None:
        """Look up changes from before this start of the controller."""
        left = set(unknown)
        for time, line in db.execute(_MACHINES, (self._first,)) if left else ():
            body = json.loads(line)
            change = body["machine"], body["why"]
            if change in left and body["is"]:
                self._changes[change] = time, body.get("by")
                left.discard(change)
            if not left:
                return


def _failures(db: sqlite3.Connection, since: float) -> dict[str, Any]:
    (count,) = db.execute(_FAILURE_COUNT, (FAILED, since)).fetchone()
    rows = [json.loads(row[0]) for row in db.execute(_FAILURES, (FAILED, since, _LISTED))]
    return {"count": count, "jobs": [_failure(row) for row in rows]}


def _failure(facts: dict[str, Any]) -> dict[str, Any]:
    cause = facts.get("cause")
    return {
        "id": facts["id"],
        "name": facts["spec"].get("name", "job"),
        "user": facts["user"],
        "ended": facts["ended"],
        "code": facts["code"],
        "sentence": sentence(cause, facts.get("detail", "")) if cause else "it failed",
    }
