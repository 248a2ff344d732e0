"""The HTTP API over one controller. It describes itself at /openapi.json."""

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from berth import __version__
from berth.errors import BerthError, InputError, UnknownNameError
from berth.live import commands
from berth.live.api import login, page_data, pages
from berth.live.api.callers import known_caller
from berth.live.api.desk import BusyError, Desk
from berth.live.api.glance import Glance
from berth.live.api.limits import Limits
from berth.live.api.links import job_at, machine_at
from berth.live.api.tokens import Caller
from berth.live.bounds import DeniedError
from berth.live.commands import ConflictError, MissingError
from berth.live.spec import SentJob, Whole, Word, said
from berth.live.store import StoreError

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "What was asked can't be done"},
    401: {"description": "No token, or one that is not known"},
    403: {"description": "Not yours, or more than a user may ask for"},
    404: {"description": "There is no such thing"},
    408: {"description": "The body did not come in time"},
    409: {"description": "It does not agree with itself, with what is there, or with what this cluster has"},
    413: {"description": "Too large"},
    429: {"description": "Too often"},
    503: {"description": "It could not be written down"},
}
_ABOUT = """
A live cluster: its jobs, its machines, and why each job stands where it stands.

Moments are Unix times: seconds since 1970-01-01 00:00 UTC, with a fraction, by the controller's clock. They are `time`,
`now`, `submitted`, `since`, `placed`, `began`, `left`, `ended`, `first_start`, `expected_start`, `expected_end` and
`starts`.

Lengths of time are seconds, also with a fraction: all names that end in `_s`, and `seconds`, `seconds_left`, `waited`
and `saves`. `cost_device_s` is seconds times devices. In a job's `spec`, `duration` and `grace` are text with a unit
(`90m`, `6h`), and `memory` is too (`80GiB`).

`token` names an attempt at running a job; it is no secret. `code` is an exit code; above 128 it is a signal.
"""
# a policy that berth has, with constants; never a file of the server's
PolicyName = Annotated[
    str,
    Field(min_length=1, max_length=200, pattern=r"^[a-z][a-z0-9-]*(:[a-z0-9_=.,-]*)?$"),
    said("must be one that berth has (berth policies); your own only simulate"),
]
Limit = Annotated[int, Query(ge=1, le=100_000)]


class Submission(BaseModel):
    """A job to be run; with an id it may be sent twice."""

    model_config = ConfigDict(extra="forbid")
    spec: SentJob
    id: Word | None = None


class Batch(BaseModel):
    """Many at once: one commit for all of them."""

    model_config = ConfigDict(extra="forbid")
    jobs: Annotated[list[Submission], Field(min_length=1, max_length=10_000)]


class Several(BaseModel):
    """Ids of jobs, or their beginnings."""

    model_config = ConfigDict(extra="forbid")
    jobs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=10_000)
    ]


class Priority(BaseModel):
    """Higher goes first."""

    model_config = ConfigDict(extra="forbid")
    priority: Annotated[int, Field(ge=-1000, le=1000, strict=True), Whole]


class WhatIf(BaseModel):
    """What would change."""

    model_config = ConfigDict(extra="forbid")
    policy: PolicyName | None = None
    add_racks: Annotated[int, Field(ge=0, le=64, strict=True), Whole] = 0


def make_app(desk: Desk) -> FastAPI:
    """The application; everything it knows is at the desk."""
    app = FastAPI(
        title="berth",
        description=_ABOUT,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_middleware(Limits, tokens=desk.tokens)
    app.state.desk = desk
    app.include_router(_router(desk), prefix="/api/v1", responses=_ERRORS)
    session = login.router(desk.tokens, desk.codes, desk.session)
    app.include_router(session, prefix="/api/v1", responses=_ERRORS)
    app.include_router(page_data.router(Glance(desk), desk.tokens), prefix="/api/v1", responses=_ERRORS)
    app.include_router(pages.router())
    app.get("/metrics", response_class=PlainTextResponse, tags=["metrics"])(_metrics(desk))
    app.add_exception_handler(BerthError, _told_error)
    app.add_exception_handler(405, _wrong_method)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """What a request got wrong, without repeating its values: JSON can't hold all of them."""
    assert isinstance(error, RequestValidationError)
    said = [{key: one[key] for key in ("type", "loc", "msg")} for one in error.errors()]
    return JSONResponse({"detail": said}, 422)


async def _wrong_method(request: Request, error: Exception) -> JSONResponse:
    """A method that an address does not have, with all that it has: several routes may share one."""
    asked, paths = request.url.path, request.app.openapi()["paths"]
    fits = [path for path in paths if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", path), asked)]
    known = paths[asked] if asked in paths else {method for path in fits for method in paths[path]}
    allowed = ", ".join(sorted(method.upper() for method in known))
    return JSONResponse({"detail": "Method Not Allowed"}, 405, {"Allow": allowed or "GET"})


async def _told_error(request: Request, error: Exception) -> JSONResponse:
    """An error of ours, as a status and one sentence."""
    status = 400
    if isinstance(error, StoreError):
        status = 503
    elif isinstance(error, BusyError):
        status = 429
    elif isinstance(error, ConflictError):
        status = 409
    elif isinstance(error, DeniedError):
        status = 403
    elif isinstance(error, MissingError | UnknownNameError):
        status = 404
    detail: dict[str, Any] = {"detail": error.what if isinstance(error, InputError) else str(error)}
    if isinstance(error, InputError) and error.hint:
        detail["hint"] = error.hint
    return JSONResponse(detail, status)


def _metrics(desk: Desk) -> Any:
    async def metrics() -> PlainTextResponse:
        """What Prometheus reads."""
        return PlainTextResponse(desk.metrics(), media_type="text/plain; version=0.0.4")

    return metrics


def _router(desk: Desk) -> APIRouter:
    router = APIRouter()

    who = known_caller(desk.tokens)

    async def admin(caller: Annotated[Caller, Depends(who)]) -> Caller:
        if caller.role != "admin":
            raise HTTPException(403, "only an admin may do this")
        return caller

    Anyone = Annotated[Caller, Depends(who)]  # noqa: N806 - a type
    Admin = Annotated[Caller, Depends(admin)]  # noqa: N806 - a type

    async def ask(command: commands.Command) -> dict[str, Any]:
        return await asyncio.wrap_future(desk.controller.ask(command))

    @router.get("/status", tags=["cluster"])
    def status(caller: Anyone) -> dict[str, Any]:
        """The cluster in a few numbers."""
        return desk.status()

    @router.get("/cluster", tags=["cluster"], responses=machine_at("/machines/0/name"))
    def cluster(caller: Anyone) -> dict[str, Any]:
        """Machines, tiers, device types and who is on each device."""
        return desk.cluster()

    @router.post("/jobs", status_code=201, tags=["jobs"], responses=job_at("/job", 201))
    async def submit(caller: Anyone, submission: Submission) -> dict[str, Any]:
        """Takes a job; when this answers, it is on the disk."""
        return await ask(desk.submission(submission.spec, caller, submission.id))

    @router.post("/jobs/batch", status_code=201, tags=["jobs"])
    async def submit_many(caller: Anyone, batch: Batch) -> dict[str, Any]:
        """Takes many jobs; each has its own answer."""

        async def one(job: Submission) -> dict[str, Any]:
            return await ask(desk.submission(job.spec, caller, job.id))

        answers = await asyncio.gather(*map(one, batch.jobs), return_exceptions=True)
        return {"jobs": [one if isinstance(one, dict) else {"error": str(one)} for one in answers]}

    @router.post("/dry-run", tags=["jobs"])
    def dry_run(caller: Anyone, submission: Submission) -> dict[str, Any]:
        """Where and when a job would start (modelled: everything takes as long as is expected of it)."""
        return desk.dry_run(submission.spec, caller)

    @router.get("/jobs", tags=["jobs"])
    def jobs(caller: Anyone, over: bool = False, limit: Limit = 1000) -> dict[str, Any]:
        """Jobs that wait or run, in the order of the queue; `over`: those that have ended."""
        return desk.jobs(caller, over=over, limit=limit)

    @router.get("/jobs/{job}", tags=["jobs"])
    def job(caller: Anyone, job: str) -> dict[str, Any]:
        """One job; the beginning of an id will do."""
        return desk.job(job, caller)

    @router.get("/jobs/{job}/why", tags=["jobs"])
    def why(caller: Anyone, job: str) -> dict[str, Any]:
        """Why it waits, or runs where it does."""
        return desk.why(job, caller)

    @router.get("/jobs/{job}/history", tags=["jobs"])
    def history(caller: Anyone, job: str) -> dict[str, Any]:
        """All that happened to it."""
        return desk.history(job)

    @router.get("/jobs/{job}/logs", tags=["jobs"], response_class=PlainTextResponse)
    def logs(
        caller: Anyone,
        job: str,
        attempt: Annotated[int | None, Query(ge=1)] = None,
        rank: Annotated[int, Query(ge=0, le=10**9)] = 0,
        offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
        limit: Annotated[int, Query(ge=1, le=1 << 22)] = 1 << 20,
    ) -> PlainTextResponse:
        """What a member of the gang has written; `X-Next-Offset` says where to read on."""
        text, following = desk.logs(job, caller, attempt=attempt, rank=rank, offset=offset, limit=limit)
        return PlainTextResponse(text, headers={"X-Next-Offset": str(following)})

    @router.post("/jobs/{job}/cancel", tags=["jobs"])
    async def cancel(caller: Anyone, job: str) -> dict[str, Any]:
        """It is not to run, or not any longer."""
        return await ask(commands.cancel(desk.own(job, caller)))

    @router.post("/cancel", tags=["jobs"])
    async def cancel_several(caller: Anyone, several: Several) -> dict[str, Any]:
        """Cancels several: all, or none if one is unknown or somebody else's; `was_over`: it had ended before."""
        return await ask(commands.cancel_all([desk.own(job, caller) for job in several.jobs]))

    @router.post("/jobs/{job}/priority", tags=["jobs"])
    async def priority(caller: Admin, job: str, wish: Priority) -> dict[str, Any]:
        """Higher goes first."""
        return await ask(commands.prioritise(desk.own(job, caller), wish.priority))

    @router.post("/machines/{machine}/drain", tags=["cluster"])
    async def drain(caller: Admin, machine: str) -> dict[str, Any]:
        """It takes no new jobs; what runs there goes on."""
        return await ask(commands.drain(machine))

    @router.post("/machines/{machine}/undrain", tags=["cluster"])
    async def undrain(caller: Admin, machine: str) -> dict[str, Any]:
        """It takes jobs again."""
        return await ask(commands.drain(machine, back=True))

    @router.post("/what-if", tags=["cluster"])
    def what_if(caller: Anyone, question: Annotated[WhatIf, Body()]) -> dict[str, Any]:
        """The same jobs from here under another policy, or on more racks (modelled)."""
        return desk.what_if(policy=question.policy, racks=question.add_racks)

    @router.get("/events", tags=["cluster"], response_class=StreamingResponse)
    async def events(
        caller: Anyone,
        last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
    ) -> StreamingResponse:
        """Everything that happens, as it is committed (server-sent events)."""
        after = int(last_event_id) if last_event_id else None
        return StreamingResponse(desk.events.stream(after), media_type="text/event-stream")

    return router
