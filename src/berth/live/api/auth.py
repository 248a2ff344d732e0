"""Authentication: the account behind the Unix socket, or the user behind a bearer token."""

from typing import Annotated, Protocol

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from berth.live.api.connections import PEER_UID
from berth.live.api.tokens import OWNER, Caller

_bearer = HTTPBearer(auto_error=False)


class Authenticator(Protocol):
    """Resolves tokens; an application keeps one in `state.authenticator`."""

    def caller(self, token: str) -> Caller | None:
        """Return the caller that a token belongs to, None if it is not valid."""


async def authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """Return the caller of a request; a token takes precedence over the socket that the request came over."""
    if credentials is None and getattr(request.state, PEER_UID, None) is not None:
        return OWNER
    authenticator: Authenticator = request.app.state.authenticator
    caller = authenticator.caller(credentials.credentials) if credentials is not None else None
    if caller is None:
        raise HTTPException(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})
    return caller


Anyone = Annotated[Caller, Depends(authenticate)]


async def require_admin(caller: Anyone) -> Caller:
    """Return the caller of a request if it is an admin."""
    if caller.role != "admin":
        raise HTTPException(403, "only an admin may do this")
    return caller


Admin = Annotated[Caller, Depends(require_admin)]
