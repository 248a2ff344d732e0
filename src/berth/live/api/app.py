"""The HTTP API over one controller. It describes itself at /openapi.json."""

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import Field

from berth import __version__
from berth.errors import BerthError, InputError, UnknownNameError
from berth.live import commands
from berth.live.api import dashboard_routes, login, pages
from berth.live.api.auth import Admin, Anyone
from berth.live.api.dashboard_data import DashboardData
from berth.live.api.limits import Limits
from berth.live.api.links import job_at, machine_at
from berth.live.api.login import RequestBody
from berth.live.api.service import BusyError, Service
from berth.live.commands import ConflictError, MissingError
from berth.live.offer import Whole
from berth.live.spec import DeniedError, SentJob, Word, said
from berth.live.store import StoreError

if TYPE_CHECKING:
    from berth.live.goals import Goal

_STATUS: dict[type[BerthError], int] = {
    StoreError: 503,
    BusyError: 429,
    ConflictError: 409,
    DeniedError: 403,
    MissingError: 404,
    UnknownNameError: 404,
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request can't be carried out"},
    401: {"description": "The token is missing or not valid"},
    403: {"description": "Another user's job, or more than a user may ask for"},
    404: {"description": "Not found"},
    408: {"description": "The body did not arrive in time"},
    409: {"description": "In conflict with itself, with the current state, or with what this cluster has"},
    413: {"description": "Request too large"},
    429: {"description": "Too many requests"},
    503: {"description": "The journal could not be written"},
}
_ABOUT = """
A live cluster: its jobs, its machines, and why each job waits or runs where it does.

Points in time are Unix times: seconds since 1970-01-01 00:00 UTC, with a fraction, by the controller's clock. They are
`time`, `now`, `submitted`, `since`, `placed`, `began`, `left`, `ended`, `first_start`, `expected_start`,
`expected_end` and `starts`.

Durations are seconds, also with a fraction: all names that end in `_s`, and `seconds`, `seconds_left`, `waited` and
`saves`. `cost_device_s` is seconds times devices. In a job's `spec`, `duration` and `grace` are text with a unit
(`90m`, `6h`), and so is `memory` (`80GiB`).

`token` names an attempt at running a job; it is not a secret. `code` is an exit code; above 128 it is a signal.
"""
# a policy that berth ships, with constants; never a file on the server
PolicyName = Annotated[
    str,
    Field(min_length=1, max_length=200, pattern=r"^[a-z][a-z0-9-]*(:[a-z0-9_=.,-]*)?$"),
    said(
        "must be one that berth has (berth policies): a policy in a file is code, which only the user "
        "who starts the controller may name (berth up --policy; berth simulate tries it out)"
    ),
]
Limit = Annotated[int, Query(ge=1, le=100_000)]


class Submission(RequestBody):
    """A job to submit. The id is an idempotency key: resubmitting with the same id is a no-op."""

    spec: SentJob
    id: Word | None = None


class Batch(RequestBody):
    """Jobs to submit in one commit."""

    jobs: Annotated[list[Submission], Field(min_length=1, max_length=10_000)]


class Several(RequestBody):
    """Ids of jobs, or unique prefixes of them."""

    jobs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1, max_length=10_000)
    ]


class Priority(RequestBody):
    """A priority; higher goes first."""

    priority: Annotated[int, Field(ge=-1000, le=1000, strict=True), Whole]


class GoalRequest(RequestBody):
    """A goal for a model: its examples, and one of a deadline, a rate and a budget."""

    model: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    examples: Annotated[float, Field(ge=1, le=1e15, strict=True)]
    deadline_s: Annotated[float, Field(gt=0, le=1e10, strict=True)] | None = None
    examples_per_s: Annotated[float, Field(gt=0, le=1e15, strict=True)] | None = None
    budget_usd: Annotated[float, Field(gt=0, le=1e12, strict=True)] | None = None
    rows: Annotated[float, Field(ge=1, le=1e15, strict=True)] | None = None  # of all tables
    against_free: bool = False  # plan on what is free now and in the next hours

    def goal(self) -> "Goal":
        """Return the goal."""
        given = self.deadline_s, self.examples_per_s, self.budget_usd
        if sum(one is not None for one in given) != 1:
            raise ConflictError("give one of deadline_s, examples_per_s and budget_usd")
        from berth.live.goals import Goal  # the planner is loaded when it is needed

        return Goal(self.model, self.examples, *given, self.rows)


class WhatIf(RequestBody):
    """A change to simulate."""

    policy: PolicyName | None = None
    add_racks: Annotated[int, Field(ge=0, le=64, strict=True), Whole] = 0


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Api = Annotated[Service, Depends(_service)]
router = APIRouter()


@router.get("/status", tags=["cluster"])
def status(api: Api, caller: Anyone) -> dict[str, Any]:
    """Return the cluster in a few numbers."""
    return api.status()


@router.get("/cluster", tags=["cluster"], responses=machine_at("/machines/0/name"))
def cluster(api: Api, caller: Anyone) -> dict[str, Any]:
    """Return machines, tiers, device types and the job on each device."""
    return api.cluster()


@router.post("/jobs", status_code=201, tags=["jobs"], responses=job_at("/job", 201))
async def submit(api: Api, caller: Anyone, submission: Submission) -> dict[str, Any]:
    """Submit a job. It is on disk once this answers."""
    return await api.run(api.submission(submission.spec, caller, submission.id))


@router.post("/jobs/batch", status_code=201, tags=["jobs"])
async def submit_many(api: Api, caller: Anyone, batch: Batch) -> dict[str, Any]:
    """Submit several jobs, each with its own answer."""

    async def one(job: Submission) -> dict[str, Any]:
        return await api.run(api.submission(job.spec, caller, job.id))

    answers = await asyncio.gather(*map(one, batch.jobs), return_exceptions=True)
    return {"jobs": [one if isinstance(one, dict) else {"error": str(one)} for one in answers]}


@router.post("/dry-run", tags=["jobs"])
def dry_run(api: Api, caller: Anyone, submission: Submission) -> dict[str, Any]:
    """Return where and when a job would start (modelled: every job takes as long as expected)."""
    return api.dry_run(submission.spec, caller)


@router.post("/plans", tags=["jobs"])
def plans(api: Api, caller: Anyone, request: GoalRequest) -> dict[str, Any]:
    """Plan a model on this cluster: the keys of a job whose alternatives meet the goal, or when each could start."""
    return api.free_plans(request.goal()) if request.against_free else api.plan(request.goal())


@router.get("/jobs", tags=["jobs"])
def jobs(api: Api, caller: Anyone, over: bool = False, limit: Limit = 1000) -> dict[str, Any]:
    """Return waiting jobs in queue order and running jobs; with `over`, jobs that have ended."""
    return api.jobs(caller, over=over, limit=limit)


@router.get("/jobs/{job}", tags=["jobs"])
def job(api: Api, caller: Anyone, job: str) -> dict[str, Any]:
    """Return one job, given its id or a unique prefix of it."""
    return api.job(job, caller)


@router.get("/jobs/{job}/why", tags=["jobs"])
def why(api: Api, caller: Anyone, job: str) -> dict[str, Any]:
    """Return why a job waits or runs where it does."""
    return api.why(job, caller)


@router.get("/jobs/{job}/history", tags=["jobs"])
def history(api: Api, caller: Anyone, job: str) -> dict[str, Any]:
    """Return all events and attempts of a job."""
    return api.history(job)


@router.get("/jobs/{job}/logs", tags=["jobs"], response_class=PlainTextResponse)
def logs(
    api: Api,
    caller: Anyone,
    job: str,
    attempt: Annotated[int | None, Query(ge=1)] = None,
    rank: Annotated[int, Query(ge=0, le=10**9)] = 0,
    offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=1 << 22)] = 1 << 20,
    tail: Annotated[int | None, Query(ge=1, le=1 << 22)] = None,
) -> PlainTextResponse:
    """Return the output of one rank of a gang, or its last `tail` bytes; `X-Next-Offset`: where what follows begins."""
    text, following = api.logs(job, caller, attempt=attempt, rank=rank, offset=offset, limit=limit, tail=tail)
    return PlainTextResponse(text, headers={"X-Next-Offset": str(following)})


@router.post("/jobs/{job}/cancel", tags=["jobs"])
async def cancel(api: Api, caller: Anyone, job: str) -> dict[str, Any]:
    """Cancel a job, whether it waits or runs."""
    return await api.run(commands.cancel(api.own(job, caller)))


@router.post("/cancel", tags=["jobs"])
async def cancel_several(api: Api, caller: Anyone, several: Several) -> dict[str, Any]:
    """Cancel all of these jobs, or none if one is unknown or not the caller's. `already_ended`: it had ended."""
    return await api.run(commands.cancel_all([api.own(job, caller) for job in several.jobs]))


@router.post("/jobs/{job}/priority", tags=["jobs"])
async def priority(api: Api, caller: Admin, job: str, wish: Priority) -> dict[str, Any]:
    """Set the priority of a job; higher goes first."""
    return await api.run(commands.prioritise(api.own(job, caller), wish.priority))


@router.post("/machines/{machine}/drain", tags=["cluster"])
async def drain(api: Api, caller: Admin, machine: str) -> dict[str, Any]:
    """Drain a machine: it takes no new jobs, and running jobs continue."""
    return await api.run(commands.drain(machine, by=caller.user))


@router.post("/machines/{machine}/undrain", tags=["cluster"])
async def undrain(api: Api, caller: Admin, machine: str) -> dict[str, Any]:
    """Let a machine take jobs again."""
    return await api.run(commands.drain(machine, back=True, by=caller.user))


@router.post("/what-if", tags=["cluster"])
def what_if(api: Api, caller: Anyone, question: Annotated[WhatIf, Body()]) -> dict[str, Any]:
    """Simulate the current jobs under another policy, or with more racks (modelled)."""
    return api.what_if(policy=question.policy, racks=question.add_racks)


@router.get("/events", tags=["cluster"], response_class=StreamingResponse)
async def events(
    api: Api, caller: Anyone, last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None
) -> StreamingResponse:
    """Stream every committed record (server-sent events)."""
    after = int(last_event_id) if last_event_id else None
    return StreamingResponse(api.events.stream(after), media_type="text/event-stream")


async def metrics(api: Api) -> PlainTextResponse:
    """Return the metrics that Prometheus scrapes."""
    return PlainTextResponse(api.metrics(), media_type="text/plain; version=0.0.4")


def make_app(service: Service) -> FastAPI:
    """Return the application over one service."""
    app = FastAPI(
        title="berth",
        description=_ABOUT,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_middleware(Limits, tokens=service.tokens)
    app.state.service, app.state.dashboard = service, DashboardData(service)
    app.state.authenticator = service.tokens
    app.state.codes, app.state.session = service.codes, service.session
    for routes in (router, login.router, dashboard_routes.router):
        app.include_router(routes, prefix="/api/v1", responses=_ERRORS)
    app.include_router(pages.router())
    app.get("/metrics", response_class=PlainTextResponse, tags=["metrics"])(metrics)
    app.add_exception_handler(BerthError, _berth_error)
    app.add_exception_handler(405, _wrong_method)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Return what is wrong with a request, without its values: JSON can't represent all of them."""
    assert isinstance(error, RequestValidationError)
    detail = [{key: one[key] for key in ("type", "loc", "msg")} for one in error.errors()]
    return JSONResponse({"detail": detail}, 422)


async def _wrong_method(request: Request, error: Exception) -> JSONResponse:
    """Refuse a method and list the allowed ones: several routes may share a path."""
    asked, paths = request.url.path, request.app.openapi()["paths"]
    fits = [path for path in paths if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", path), asked)]
    known = paths[asked] if asked in paths else {method for path in fits for method in paths[path]}
    allowed = ", ".join(sorted(method.upper() for method in known))
    return JSONResponse({"detail": "Method Not Allowed"}, 405, {"Allow": allowed or "GET"})


async def _berth_error(request: Request, error: Exception) -> JSONResponse:
    """Return an error of berth as a status and one sentence."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)
    detail: dict[str, Any] = {"detail": error.what if isinstance(error, InputError) else str(error)}
    if isinstance(error, InputError) and error.hint:
        detail["hint"] = error.hint
    return JSONResponse(detail, status)
