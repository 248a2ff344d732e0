"""A live cluster as the dashboard reads it: the state in columns, and the public part of the journal."""

from __future__ import annotations

import json
import sqlite3
import threading
from typing import Any

from berth.cluster.serialize import cluster_to_dict
from berth.live import views
from berth.live.api.attention import Attention
from berth.live.api.events import public
from berth.live.api.past_series import past_samples
from berth.live.api.series import COARSE_S, KEPT_S, Series
from berth.live.api.service import Service
from berth.live.api.tokens import Caller
from berth.live.controller import Controller
from berth.live.home import JOURNAL
from berth.live.records import read
from berth.live.state import ControllerState
from berth.live.store import connect
from berth.schedule.policies.registry import load_policy, policy_names
from berth.schedule.policy import Policy

# records that change placements or machines; `pass` and `learned` do not
_KINDS = (
    "opened", "submitted", "cancelled", "prioritised", "machine", "external", "foreign", "started", "exited",
    "ready", "start", "evict", "move",
)  # fmt: skip
_PAGE = (
    "SELECT seq, time, kind, job, body FROM journal "
    f"WHERE seq > ? AND kind IN ({', '.join('?' * len(_KINDS))}) ORDER BY seq LIMIT ?"
)


_PAST_WAIT_S = 2.0  # a journal of a few days is read in less
_JOB_COLUMNS = ("id", "user", "submitted", "since", "evictions", "failures")
_SPEC_COLUMNS = ("name", "priority", "restarts")


class DashboardData:
    """What the dashboard reads of a service."""

    def __init__(self, service: Service) -> None:
        self._service, self._controller = service, service.controller
        self._series = Series(service.controller)
        self._first = _first_of(service.controller)
        self._start_seq, self._start = service.controller.store.seq, service.controller.now()
        self._past: threading.Thread | None = None
        self._attention = Attention(service.controller, self._first)

    def me(self, caller: Caller) -> dict[str, Any]:
        """Return the caller, the cluster, and what the caller can do here."""
        with self._controller.lock:
            cluster, policy = self._controller.state.cluster, self._controller.state.setup.policy
        return {
            "user": caller.user,
            "role": caller.role,
            "live": True,
            "policy": policy,
            "policies": [  # those that need no trace in advance
                name for name in policy_names() if type(load_policy(name)).prepare is Policy.prepare
            ],
            "cluster": cluster_to_dict(cluster),
        }

    def now(self) -> dict[str, Any]:
        """Return placements and queue as of one record of the journal."""
        with self._controller.lock:
            state = self._controller.state
            return {
                "seq": self._controller.store.seq,
                "time": self._controller.now(),
                "jobs": _jobs(state),
                "attempts": _attempts(state),
                "unavailable": {str(index): why for index, why in enumerate(state.unavailable) if why},
                "external": {str(index): count for index, count in enumerate(state.external) if count},
            }

    def journal(self, after: int, limit: int) -> dict[str, Any]:
        """Return records that changed placements, in order, since the cluster last changed."""
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
        """Return numbers over time, in columns; `complete`: those of before the controller's start are among them."""
        if self._past is None:
            self._series.complete = False
            self._past = threading.Thread(target=self._read_past, name="past-series", daemon=True)
            self._past.start()
            self._past.join(_PAST_WAIT_S)
        return self._series.after(after) | {"complete": self._series.complete}

    def _read_past(self) -> None:
        """Compute the samples of before this start of the controller from the journal."""
        controller = self._controller
        with controller.lock:
            cluster = controller.state.cluster
        db = connect(controller.store.folder / JOURNAL, read_only=True)
        try:
            bounds = (self._first, self._start_seq, self._start - KEPT_S, COARSE_S)
            self._series.prepend(list(past_samples(db, cluster, *bounds)))
        finally:
            db.close()

    def attention(self) -> dict[str, Any]:
        """Return what is wrong: failed and evicted jobs, machines that take no jobs, a silent back end."""
        return self._attention.report()

    def queue(self) -> dict[str, Any]:
        """Return the ids of waiting jobs in queue order."""
        with self._controller.lock:
            return {"order": [job.id for job in views.queue(self._controller.state)]}

    def reasons(self, ids: list[str]) -> dict[str, Any]:
        """Return by id why a job waits or runs where it does, and its expected start."""
        return {name: facts.pop("reason") | facts for name, facts in self._service.reasons(ids).items()}


def _first_of(controller: Controller) -> int:
    """The record since which the cluster is unchanged: placements before it refer to other machines."""
    now, first = json.loads(json.dumps(cluster_to_dict(controller.state.cluster))), controller.store.seq
    now.pop("notes")
    db = connect(controller.store.folder / JOURNAL, read_only=True)
    try:
        for seq, body in db.execute("SELECT seq, body FROM journal WHERE kind = 'opened' ORDER BY seq DESC"):
            cluster = json.loads(body)["cluster"]
            cluster.pop("notes", None)
            if cluster != now:
                break
            first = seq
    finally:
        db.close()
    return int(first)


def _jobs(state: ControllerState) -> dict[str, list[Any]]:
    """Jobs that have not ended, one list per attribute."""
    jobs = list(state.jobs.values())
    columns = {name: [getattr(job, name) for job in jobs] for name in _JOB_COLUMNS}
    columns |= {name: [getattr(job.spec, name) for job in jobs] for name in _SPEC_COLUMNS}
    sizes = [views.size_row(state, job) for job in jobs]
    columns |= {name: [size.get(name, 0) for size in sizes] for name in ("gpus", "cores")}
    return columns | {"state": [views.state_of(state, job) for job in jobs]}


def _attempts(state: ControllerState) -> list[dict[str, Any]]:
    """Attempts that hold devices."""
    placed = [state.attempts[job.token] for job in state.jobs.values() if job.token is not None]
    return [
        {
            "job": attempt.job,
            "token": attempt.token,
            "tier": attempt.tier,
            "time": attempt.since,
            "began": attempt.began,
            "seats": [seat.to_list() for seat in attempt.seats],
        }
        for attempt in placed
    ]
