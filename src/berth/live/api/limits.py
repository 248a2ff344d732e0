"""Limits per caller: bytes of a request, time to send it, requests per second."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from berth.live.api.auth import Authenticator

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_MOST_CALLERS = 10_000
_BODY_S = 20.0  # to receive a body
_REFUSED_S = 5.0  # to read the rest of a refused request
_BEARER = b"bearer "


class _RefusedError(Exception):
    """A request exceeds a limit."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class Limits:
    """ASGI middleware that refuses requests that are too large, too slow or too many.

    It reads every other request to its end before the application answers. Otherwise a route without a body answers at
    once, and a client that asked to close the connection and is still sending gets a broken pipe.

    Requests are counted by token if the token is valid, else by the address of the peer.
    """

    def __init__(
        self, app: Any, tokens: Authenticator, *, body_bytes: int = 16 << 20, per_s: float = 2_000.0
    ) -> None:
        self._app, self._tokens, self._body_bytes, self._per_s = app, tokens, body_bytes, per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            request = await self._read(scope, headers, receive)
        except _RefusedError as error:
            waits = b"expect" in headers  # it waits for permission to send its body and does not get it
            await _refuse(error, _nothing if waits else receive, send)
            return
        if request is None:
            return
        await self._app(scope, _first(request, receive), send)

    async def _read(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Message | None:
        """The request with its whole body, None if the client disconnected."""
        if not self._allowed(self._caller(scope, headers)):
            raise _RefusedError(429, "too many requests")
        large = _RefusedError(413, f"a request may have at most {self._body_bytes} bytes")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes:
            raise large
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > self._body_bytes:
                        raise large
                    if not message.get("more_body", False):
                        return {"type": "http.request", "body": bytes(body), "more_body": False}
        except TimeoutError:
            raise _RefusedError(408, f"the body did not arrive within {_BODY_S:g} s") from None

    def _allowed(self, caller: str) -> bool:
        now = time.monotonic()
        left, at = self._buckets.pop(caller, (self._per_s, now))
        left = min(self._per_s, left + (now - at) * self._per_s)
        self._buckets[caller] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)
        return left >= 1.0

    def _caller(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"authorization", b"")
        if given[: len(_BEARER)].lower() == _BEARER:
            token = given[len(_BEARER) :].strip().decode("latin-1")
            if self._tokens.caller(token) is not None:
                return "token " + hashlib.sha256(token.encode()).hexdigest()[:16]
        client = scope.get("client") or ("", 0)
        return f"peer {client[0]}"


def _first(request: Message, receive: Receive) -> Receive:
    """The messages for the application: first the request that was read, then what follows."""
    pending = [request]

    async def received() -> Message:
        return pending.pop() if pending else await receive()

    return received


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _refuse(error: _RefusedError, receive: Receive, send: Send) -> None:
    """Answer, and read on for a while before the connection is closed, so that the client reads the answer."""
    body = f'{{"detail":"{error}"}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})
