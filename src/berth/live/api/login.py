"""From a command line to a browser: a code that works once buys a token that the page keeps.

The arguments of a browser's process can be read by others on the machine, so no token is ever among them.
"""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from berth.live.api.callers import Known, known_caller
from berth.live.api.links import code_at
from berth.live.api.tokens import Caller, Codes


class Code(BaseModel):
    """A code for one login."""

    model_config = ConfigDict(extra="forbid")
    code: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")]


class Session(BaseModel):
    """A token for a page."""

    token: str


def router(tokens: Known, codes: Codes, token_for: Callable[[Caller], str | None]) -> APIRouter:
    """Serve both ends of a login."""
    routes = APIRouter(tags=["dashboard"])
    Anyone = Annotated[Caller, Depends(known_caller(tokens))]  # noqa: N806 - a type

    @routes.post("/login-code", status_code=201, responses=code_at("/code"))
    def login_code(caller: Anyone) -> Code:
        """Make a code that opens the dashboard once, within two minutes, with the rights of the caller."""
        if caller.session:
            raise HTTPException(403, "a page's token makes no login codes; ask with the token behind it")
        return Code(code=codes.add(caller))

    @routes.post("/login", status_code=201)
    def login(given: Code) -> Session:
        """Exchange a code for a token."""
        caller = codes.take(given.code)
        token = token_for(caller) if caller is not None else None
        if token is None:
            raise HTTPException(401, "this code is unknown, was used, or is too old, or its token has ended")
        return Session(token=token)

    return routes
