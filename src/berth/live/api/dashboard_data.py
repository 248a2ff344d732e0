"""A live cluster as the dashboard reads it: the books in columns, and the public part of the journal."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from berth.cluster.serialize import cluster_to_dict
from berth.live import views
from berth.live.api.events import public
from berth.live.api.series import Series
from berth.live.api.service import Service
from berth.live.api.tokens import Caller
from berth.live.books import Books
from berth.live.controller import Controller
from berth.live.home import JOURNAL
from berth.live.records import read
from berth.live.store import connect
from berth.schedule.policies.registry import load_policy, policy_names
from berth.schedule.policy import Policy

# what changes who is where; passes and what was learned do not
_KINDS = (
    "opened", "submitted", "cancelled", "prioritised", "machine", "foreign", "started", "exited", "ready",
    "start", "evict", "move",
)  # fmt: skip
_PAGE = (
    "SELECT seq, time, kind, job, body FROM journal "
    f"WHERE seq > ? AND kind IN ({', '.join('?' * len(_KINDS))}) ORDER BY seq LIMIT ?"
)


class DashboardData:
    """The dashboard's side of a service."""

    def __init__(self, service: Service) -> None:
        self._service, self._controller = service, service.controller
        self._series = Series(service.controller)
        self._first = _first_of(service.controller)

    def me(self, caller: Caller) -> dict[str, Any]:
        """Who asks, and what can be done here."""
        with self._controller.lock:
            cluster, policy = self._controller.books.cluster, self._controller.books.setup.policy
        return {
            "user": caller.user,
            "role": caller.role,
            "live": True,
            "policy": policy,
            "policies": _policies(),
            "cluster": cluster_to_dict(cluster),
        }

    def now(self) -> dict[str, Any]:
        """Who is where and who waits, as of one record of the journal."""
        with self._controller.lock:
            books = self._controller.books
            return {
                "seq": self._controller.store.seq,
                "time": self._controller.now(),
                "jobs": _jobs(books),
                "attempts": _attempts(books),
                "shut": {str(index): why for index, why in enumerate(books.shut) if why},
                "foreign": {str(index): count for index, count in enumerate(books.foreign) if count},
            }

    def journal(self, after: int, limit: int) -> dict[str, Any]:
        """Records that changed who is where, in order, since the cluster is what it is."""
        store, after = self._controller.store, max(after, self._first - 1)
        with self._controller.lock:
            seq = store.seq
        db: sqlite3.Connection = connect(store.folder / JOURNAL, read_only=True)
        try:
            rows = db.execute(_PAGE, (after, *_KINDS, limit)).fetchall()
        finally:
            db.close()
        records = [{"seq": row[0]} | public(read(*row[1:])) for row in rows]
        whole = len(rows) < limit
        last = max(after, seq) if whole else rows[-1][0]
        return {"records": records, "first": self._first, "last": last, "whole": whole}

    def series(self, after: float) -> dict[str, Any]:
        """Numbers over time, in columns."""
        return self._series.told(after)

    def queue(self) -> dict[str, Any]:
        """Ids of those who wait, most deserving first."""
        with self._controller.lock:
            return {"order": [job.id for job in views.queue(self._controller.books)]}

    def reasons(self, ids: list[str]) -> dict[str, Any]:
        """By id: why a job stands where it stands, and when it should start."""
        return {name: facts.pop("reason") | facts for name, facts in self._service.reasons(ids).items()}


def _first_of(controller: Controller) -> int:
    """The record at which a controller first opened this very cluster: seats before it name other machines."""
    now, first = json.loads(json.dumps(cluster_to_dict(controller.books.cluster))), controller.store.seq
    db = connect(controller.store.folder / JOURNAL, read_only=True)
    try:
        for seq, body in db.execute("SELECT seq, body FROM journal WHERE kind = 'opened' ORDER BY seq DESC"):
            if json.loads(body)["cluster"] != now:
                break
            first = seq
    finally:
        db.close()
    return int(first)


def _policies() -> list[str]:
    """Those that need not read a whole trace beforehand."""
    return [name for name in policy_names() if type(load_policy(name)).prepare is Policy.prepare]


def _jobs(books: Books) -> dict[str, list[Any]]:
    """Jobs that are not over, a list for each fact."""
    jobs = list(books.jobs.values())
    return {
        "id": [job.id for job in jobs],
        "name": [job.spec.name for job in jobs],
        "user": [job.user for job in jobs],
        "gpus": [job.spec.gpus for job in jobs],
        "priority": [job.spec.priority for job in jobs],
        "restarts": [job.spec.restarts for job in jobs],
        "state": [views.state_of(books, job) for job in jobs],
        "submitted": [job.submitted for job in jobs],
        "since": [job.since for job in jobs],
        "evictions": [job.evictions for job in jobs],
        "failures": [job.failures for job in jobs],
    }


def _attempts(books: Books) -> list[dict[str, Any]]:
    """Attempts that hold a place."""
    placed = [books.attempts[job.token] for job in books.jobs.values() if job.token is not None]
    return [
        {
            "job": attempt.job,
            "token": attempt.token,
            "tier": attempt.tier,
            "time": attempt.since,
            "began": attempt.began,
            "seats": [seat.plain() for seat in attempt.seats],
        }
        for attempt in placed
    ]
