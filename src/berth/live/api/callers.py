"""Who asks: the caller behind a bearer token, for every route that needs one."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from berth.live.api.tokens import Caller

_bearer = HTTPBearer(auto_error=False)


class Known(Protocol):
    """Whatever knows tokens."""

    def caller(self, token: str) -> Caller | None:
        """Whose token this is."""


def known_caller(tokens: Known) -> Callable[..., Awaitable[Caller]]:
    """A dependency that lets only known tokens through."""

    async def who(
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Caller:
        caller = tokens.caller(credentials.credentials) if credentials is not None else None
        if caller is None:
            raise HTTPException(401, "a known bearer token is needed", {"WWW-Authenticate": "Bearer"})
        return caller

    return who
