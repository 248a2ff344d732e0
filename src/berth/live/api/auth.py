"""Who asks: the account behind the Unix socket, or the caller behind a bearer token."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from berth.live.api.tokens import OWNER, Caller

_bearer = HTTPBearer(auto_error=False)


class Authenticator(Protocol):
    """Whatever knows tokens."""

    def caller(self, token: str) -> Caller | None:
        """Whose token this is."""


def authenticate(tokens: Authenticator) -> Callable[..., Awaitable[Caller]]:
    """A dependency that lets only known callers through; a token counts more than the socket it came over."""

    async def who(
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Caller:
        if credentials is None and getattr(request.state, "peer_uid", None) is not None:
            return OWNER
        caller = tokens.caller(credentials.credentials) if credentials is not None else None
        if caller is None:
            raise HTTPException(401, "a known bearer token is needed", {"WWW-Authenticate": "Bearer"})
        return caller

    return who
