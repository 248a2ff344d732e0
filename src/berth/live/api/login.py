"""Login of a browser: a code that works once is exchanged for a token that the page keeps.

Other users of the machine can read the arguments of a browser's process, so a token is never among them.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from berth.live.api.auth import Anyone
from berth.live.api.links import code_at
from berth.live.api.tokens import Caller, LoginCodes

router = APIRouter(tags=["dashboard"])


class RequestBody(BaseModel):
    """The body of a request: a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class Code(RequestBody):
    """A code for one login."""

    code: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")]


class Session(BaseModel):
    """A token for a page."""

    token: str


@router.post("/login-code", status_code=201, responses=code_at("/code"))
def login_code(request: Request, caller: Anyone) -> Code:
    """Create a code that opens the dashboard once, within two minutes, with the rights of the caller."""
    if caller.session:
        raise HTTPException(403, "a page's token can't create login codes; use the token it was created for")
    codes: LoginCodes = request.app.state.codes
    return Code(code=codes.add(caller))


@router.post("/login", status_code=201)
def login(request: Request, given: Code) -> Session:
    """Exchange a code for a token."""
    codes: LoginCodes = request.app.state.codes
    session: Callable[[Caller], str | None] = request.app.state.session
    caller = codes.take(given.code)
    token = session(caller) if caller is not None else None
    if token is None:
        raise HTTPException(401, "this code is unknown, used or too old, or its token has ended")
    return Session(token=token)
