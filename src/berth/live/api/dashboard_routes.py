"""What the dashboard reads beyond the API for people and programs: compact, and the same live and simulated.

A page keeps its own picture of who is where. It is given the state once (`now`), folds records after that, and asks for
sentences and estimates only of the rows that it shows.
"""

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from berth.live.api.auth import Authenticator, authenticate
from berth.live.api.tokens import Caller

_MOST_IDS = 300  # a screen of a long list


class Source(Protocol):
    """Where a page's data come from."""

    def me(self, caller: Caller) -> dict[str, Any]:
        """Who asks, and what can be done here."""

    def now(self) -> dict[str, Any]:
        """Who is where and who waits, as of one record of the journal."""

    def journal(self, after: int, limit: int) -> dict[str, Any]:
        """Records as everybody may see them, in order."""

    def series(self, after: float) -> dict[str, Any]:
        """Numbers over time, in columns."""

    def queue(self) -> dict[str, Any]:
        """Ids of those who wait, most deserving first."""

    def reasons(self, ids: list[str]) -> dict[str, Any]:
        """By id: why a job stands where it stands, and when it should start."""


def router(source: Source, tokens: Authenticator) -> APIRouter:
    """The routes of a source."""
    routes = APIRouter(tags=["dashboard"])
    Anyone = Annotated[Caller, Depends(authenticate(tokens))]  # noqa: N806 - a type

    @routes.get("/me", response_class=JSONResponse)
    def me(caller: Anyone) -> JSONResponse:
        """Who asks, what can be done here, and the cluster."""
        return JSONResponse(source.me(caller))

    @routes.get("/now", response_class=JSONResponse)
    def now(caller: Anyone) -> JSONResponse:
        """Who is where and who waits, in columns; `seq` is the record after which this holds."""
        return JSONResponse(source.now())

    @routes.get("/journal", response_class=JSONResponse)
    def journal(
        caller: Anyone,
        after: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=20_000)] = 5_000,
    ) -> JSONResponse:
        """Records that changed who is where; what a job runs is not in them. `last`: ask for what follows it."""
        return JSONResponse(source.journal(after, limit))

    @routes.get("/series", response_class=JSONResponse)
    def series(
        caller: Anyone, after: Annotated[float, Query(ge=-1.0, le=1e15, allow_inf_nan=False)] = -1.0
    ) -> JSONResponse:
        """Devices in use, jobs that wait, timers and cost over time."""
        return JSONResponse(source.series(after))

    @routes.get("/queue", response_class=JSONResponse)
    def queue(caller: Anyone) -> JSONResponse:
        """Ids of those who wait, most deserving first."""
        return JSONResponse(source.queue())

    @routes.get("/reasons", response_class=JSONResponse)
    def reasons(
        caller: Anyone, ids: Annotated[str, Query(max_length=20_000, pattern=r"^[A-Za-z0-9._,-]*$")] = ""
    ) -> JSONResponse:
        """Sentences and expected starts of the jobs named, separated by commas."""
        wanted = dict.fromkeys(filter(None, ids.split(",")))
        return JSONResponse(source.reasons(list(wanted)[:_MOST_IDS]))

    return routes
