"""The dashboard over a finished simulation: the same page, read-only, without a controller."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException

from berth import __version__
from berth.cluster.serialize import cluster_to_dict
from berth.live.api import dashboard_routes, login, pages
from berth.live.api.auth import authenticate
from berth.live.api.limits import Limits
from berth.live.api.series import columns
from berth.live.api.tokens import Caller, LoginCodes
from berth.live.finished import Finished, standing

READER = Caller("reader", "user")


class SingleToken:
    """One reader, whose token lives as long as the process."""

    def __init__(self) -> None:
        self.token, self.codes = secrets.token_urlsafe(32), LoginCodes()

    def caller(self, token: str) -> Caller | None:
        """Whose token this is."""
        same = secrets.compare_digest(token.encode(), self.token.encode())
        return READER if same else None


class Viewer:
    """A finished run as the page reads it."""

    def __init__(self, finished: Finished) -> None:
        self._finished, self._standing = finished, standing(finished)
        self._cluster = cluster_to_dict(finished.cluster)

    def me(self, caller: Caller) -> dict[str, Any]:
        """Who asks, and what is shown."""
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
        """The busiest moment: there the page begins."""
        return self._standing

    def journal(self, after: int, limit: int) -> dict[str, Any]:
        """Records in order."""
        records = self._finished.records[after : after + limit]
        last = after + len(records)
        return {"records": records, "first": 1, "last": last, "whole": last >= len(self._finished.records)}

    def series(self, after: float) -> dict[str, Any]:
        """Numbers over time, in columns."""
        return columns([one for one in self._finished.samples if one.time > after])

    def queue(self) -> dict[str, Any]:
        """Nobody waits any more."""
        return {"order": []}

    def reasons(self, ids: list[str]) -> dict[str, Any]:
        """A log has reasons for what was decided, not for what was not: see a job's events."""
        return {}

    def job(self, name: str) -> dict[str, Any]:
        """One job and what became of it."""
        records = self._records(name)
        first = records[0][1]
        starts = [record["time"] for _, record, _ in _typed(records, "start")]
        ended = [record["time"] for _, record, _ in _typed(records, "exited")]
        return {
            "id": name,
            "name": first.get("spec", {}).get("name", name),
            "user": first.get("user", ""),
            "gpus": first.get("spec", {}).get("gpus", 0),
            "state": "finished" if ended else "unfinished",
            "submitted": first["time"],
            "first_start": starts[0] if starts else None,
            "ended": ended[-1] if ended else None,
            "attempts": len(starts) + len(_typed(records, "move")),
            "evictions": len(_typed(records, "evict")),
        }

    def history(self, name: str) -> dict[str, Any]:
        """All that happened to a job."""
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
        told = {"seq": seq, "time": record["time"], "kind": record["kind"]}
        if reason and reason != "none":
            told["reason"] = reason
        if "seats" in record:
            told |= self._where(record)
        return told

    def _where(self, record: dict[str, Any]) -> dict[str, Any]:
        cluster = self._finished.cluster
        places: dict[str, int] = {}
        for machine, _, numbers in record["seats"]:
            name = cluster.machines[machine].name
            places[name] = places.get(name, 0) + len(numbers)
        return {"tier": cluster.tiers[record["tier"]].name, "places": places}

    def _attempts(self, records: "Numbered") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for _, record, reason in records:
            kind, time = record["kind"], record["time"]
            if kind in ("evict", "move") and found:
                found[-1] |= {"left": time, "ended": time, "left_for": reason}
            if kind in ("start", "move"):
                about = {"token": record["token"], "number": len(found) + 1, "placed": time, "began": time}
                found.append(about | self._where(record) | {"reason": reason})
            elif kind == "exited" and found:
                found[-1] |= {"ended": time, "code": 0, "codes": [0]}
        return found


Numbered = list[tuple[int, dict[str, Any], str | None]]


def _typed(records: Numbered, kind: str) -> Numbered:
    return [one for one in records if one[1]["kind"] == kind]


def make_viewer(finished: Finished, tokens: SingleToken) -> FastAPI:
    """The application over one finished run."""
    app = FastAPI(title="berth", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Limits, tokens=tokens)
    viewer = Viewer(finished)
    session = login.router(tokens, tokens.codes, lambda _: tokens.token)
    app.include_router(session, prefix="/api/v1")
    app.include_router(dashboard_routes.router(viewer, tokens), prefix="/api/v1")
    app.include_router(_jobs(viewer, tokens), prefix="/api/v1")
    app.include_router(pages.router())
    return app


def _jobs(viewer: Viewer, tokens: SingleToken) -> APIRouter:
    routes = APIRouter()
    Anyone = Annotated[Caller, Depends(authenticate(tokens))]  # noqa: N806 - a type

    @routes.get("/jobs/{job:path}/history")
    def history(caller: Anyone, job: str) -> dict[str, Any]:
        """All that happened to a job."""
        return viewer.history(job)

    @routes.get("/jobs/{job:path}")
    def job(caller: Anyone, job: str) -> dict[str, Any]:
        """One job."""
        return viewer.job(job)

    return routes
