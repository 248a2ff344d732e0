"""The dashboard over a finished simulation: the same page, read-only."""

import secrets
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request

from berth import __version__
from berth.cluster.serialize import cluster_to_dict
from berth.live.api import dashboard_routes, login, pages
from berth.live.api.auth import Anyone
from berth.live.api.limits import Limits
from berth.live.api.series import columns
from berth.live.api.tokens import Caller, LoginCodes
from berth.live.history import placement
from berth.live.simulation_view import Finished, state_at_busiest

READER = Caller("reader", "user")


class SingleToken:
    """One reader, with a token that is valid as long as the process runs."""

    def __init__(self) -> None:
        self.token, self.codes = secrets.token_urlsafe(32), LoginCodes()

    def caller(self, token: str) -> Caller | None:
        """Return the reader if this is the token."""
        same = secrets.compare_digest(token.encode(), self.token.encode())
        return READER if same else None


class Viewer:
    """A finished run as the dashboard reads it."""

    def __init__(self, finished: Finished) -> None:
        self._finished, self._busiest = finished, state_at_busiest(finished)
        self._cluster = cluster_to_dict(finished.cluster)

    def me(self, caller: Caller) -> dict[str, Any]:
        """Return the caller and the run."""
        finished = self._finished
        return {
            "user": caller.user,
            "role": caller.role,
            "live": False,
            "policy": finished.policy,
            "policies": [],
            "cluster": self._cluster,
            "trace": finished.trace,
            "end": finished.end_s,
        }

    def now(self) -> dict[str, Any]:
        """Return placements and queue at the busiest moment, where the page starts."""
        return self._busiest

    def journal(self, after: int, limit: int) -> dict[str, Any]:
        """Return records in order."""
        records = self._finished.records[after : after + limit]
        last = after + len(records)
        return {"records": records, "first": 1, "last": last, "whole": last >= len(self._finished.records)}

    def series(self, after: float) -> dict[str, Any]:
        """Return numbers over time, in columns."""
        return columns([one for one in self._finished.samples if one.time > after]) | {"complete": True}

    def attention(self) -> dict[str, Any]:
        """Return nothing: the page finds it in the records, as of the moment that it shows."""
        return {}

    def queue(self) -> dict[str, Any]:
        """Return an empty queue: the run is over."""
        return {"order": []}

    def reasons(self, ids: list[str]) -> dict[str, Any]:
        """Return nothing: a log has reasons only for decisions that were taken, in a job's events."""
        return {}

    def job(self, name: str) -> dict[str, Any]:
        """Return one job."""
        records = self._records(name)
        first = records[0][1]
        starts = [record["time"] for _, record, _ in _of_kind(records, "start")]
        ended = [record["time"] for _, record, _ in _of_kind(records, "exited")]
        return {
            "id": name,
            "name": first.get("spec", {}).get("name", name),
            "user": first.get("user", ""),
            "gpus": first.get("spec", {}).get("gpus", 0),
            "state": "finished" if ended else "unfinished",
            "submitted": first["time"],
            "first_start": starts[0] if starts else None,
            "ended": ended[-1] if ended else None,
            "attempts": len(starts) + len(_of_kind(records, "move")),
            "evictions": len(_of_kind(records, "evict")),
        }

    def history(self, name: str) -> dict[str, Any]:
        """Return all events and attempts of a job."""
        records = self._records(name)
        return {
            "job": name,
            "events": [self._event(*one) for one in records],
            "attempts": self._attempts(records),
            "steps": [],
            "steps_by_tier": [],
        }

    def _records(self, name: str) -> "Numbered":
        if name not in self._finished.of_job:
            raise HTTPException(404, f"there is no job {name!r}")
        finished = self._finished
        return [(at + 1, finished.records[at], finished.reasons[at]) for at in finished.of_job[name]]

    def _event(self, seq: int, record: dict[str, Any], reason: str | None) -> dict[str, Any]:
        event = {"seq": seq, "time": record["time"], "kind": record["kind"]}
        if reason and reason != "none":
            event["reason"] = reason
        return event | placement(record, self._finished.cluster) if "seats" in record else event

    def _attempts(self, records: "Numbered") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _, record, reason in records:
            kind, time = record["kind"], record["time"]
            if kind in ("evict", "move") and found:
                found[-1] |= {"left": time, "ended": time, "left_for": reason}
            if kind in ("start", "move"):
                about = {"token": record["token"], "number": len(found) + 1, "placed": time, "began": time}
                found.append(about | placement(record, self._finished.cluster) | {"reason": reason})
            elif kind == "exited" and found:
                found[-1] |= {"ended": time, "code": 0, "codes": [0]}
        return found


Numbered = list[tuple[int, dict[str, Any], str | None]]


def _of_kind(records: Numbered, kind: str) -> Numbered:
    return [one for one in records if one[1]["kind"] == kind]


def make_viewer(finished: Finished, tokens: SingleToken) -> FastAPI:
    """Return the application over one finished run."""
    app = FastAPI(title="berth", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Limits, tokens=tokens)
    app.state.authenticator, app.state.dashboard = tokens, Viewer(finished)
    app.state.codes, app.state.session = tokens.codes, lambda caller: tokens.token
    for routes in (login.router, dashboard_routes.router, router):
        app.include_router(routes, prefix="/api/v1")
    app.include_router(pages.router())
    return app


router = APIRouter()


@router.get("/jobs/{job:path}/history")
def history(request: Request, caller: Anyone, job: str) -> dict[str, Any]:
    """Return all events and attempts of a job."""
    viewer: Viewer = request.app.state.dashboard
    return viewer.history(job)


@router.get("/jobs/{job:path}")
def job(request: Request, caller: Anyone, job: str) -> dict[str, Any]:
    """Return one job."""
    viewer: Viewer = request.app.state.dashboard
    return viewer.job(job)
