"""Routes that only the dashboard reads, the same for a live cluster and for a finished simulation.

A page keeps its own copy of the state. It reads the state once (`now`), applies the records that follow, and asks for
reasons and estimates only of the rows that it shows.
"""

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from berth.live.api.auth import Anyone
from berth.live.api.tokens import Caller

_MOST_IDS = 300  # about a screen of a long list
router = APIRouter(tags=["dashboard"], default_response_class=JSONResponse)


class DashboardSource(Protocol):
    """Where a page's data come from; an application keeps one in `state.dashboard`."""

    def me(self, caller: Caller) -> dict[str, Any]:
        """Return the caller, the cluster, and what the caller can do here."""

    def now(self) -> dict[str, Any]:
        """Return placements and queue as of one record of the journal."""

    def journal(self, after: int, limit: int) -> dict[str, Any]:
        """Return records in order, without what only a job's owner may read."""

    def series(self, after: float) -> dict[str, Any]:
        """Return numbers over time, in columns."""

    def attention(self) -> dict[str, Any]:
        """Return what is wrong: failed and evicted jobs, machines that take no jobs, a silent back end."""

    def queue(self) -> dict[str, Any]:
        """Return the ids of waiting jobs in queue order."""

    def reasons(self, ids: list[str]) -> dict[str, Any]:
        """Return by id why a job waits or runs where it does, and its expected start."""


async def _source(request: Request) -> DashboardSource:
    source: DashboardSource = request.app.state.dashboard
    return source


Source = Annotated[DashboardSource, Depends(_source)]


@router.get("/me")
def me(caller: Anyone, source: Source) -> JSONResponse:
    """Return the caller, the cluster, and what the caller can do here."""
    return JSONResponse(source.me(caller))


@router.get("/now")
def now(caller: Anyone, source: Source) -> JSONResponse:
    """Return placements and queue, in columns, as of the journal's record `seq`."""
    return JSONResponse(source.now())


@router.get("/journal")
def journal(
    caller: Anyone,
    source: Source,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=20_000)] = 5_000,
) -> JSONResponse:
    """Return records that changed placements, without the jobs' commands. The next page starts after `last`."""
    return JSONResponse(source.journal(after, limit))


@router.get("/series")
def series(
    caller: Anyone,
    source: Source,
    after: Annotated[float, Query(ge=-1.0, le=1e15, allow_inf_nan=False)] = -1.0,
) -> JSONResponse:
    """Return devices in use, waiting jobs, timers and cost over time."""
    return JSONResponse(source.series(after))


@router.get("/attention")
def attention(caller: Anyone, source: Source) -> JSONResponse:
    """Return failures of the last day, evictions of the last hour, and machines that take no jobs and why."""
    return JSONResponse(source.attention())


@router.get("/queue")
def queue(caller: Anyone, source: Source) -> JSONResponse:
    """Return the ids of waiting jobs in queue order."""
    return JSONResponse(source.queue())


@router.get("/reasons")
def reasons(
    caller: Anyone,
    source: Source,
    ids: Annotated[str, Query(max_length=20_000, pattern=r"^[A-Za-z0-9._,-]*$")] = "",
) -> JSONResponse:
    """Return reasons and expected starts of jobs, given their ids separated by commas."""
    unique = dict.fromkeys(filter(None, ids.split(",")))
    return JSONResponse(source.reasons(list(unique)[:_MOST_IDS]))
