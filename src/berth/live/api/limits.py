"""Bounds on what one caller may ask for: bytes in a request, time to send it, requests in a second."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException

from berth.live.api.callers import Known

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
_MOST_CALLERS = 10_000
_BODY_S = 20.0  # for a body to come
_BEARER = b"bearer "


class Limits:
    """ASGI middleware: requests that are too large, too slow or too many are refused before anything reads them.

    A known token is a caller of its own; everything else is its peer's, whatever it sends as a token.
    """

    def __init__(
        self, app: Any, tokens: Known, *, body_bytes: int = 16 << 20, per_s: float = 2_000.0
    ) -> None:
        self._app, self._tokens, self._body_bytes, self._per_s = app, tokens, body_bytes, per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._allowed(self._caller(scope, headers)):
            await _refuse(send, 429, "too many requests")
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes:
            await _refuse(send, 413, f"a request has at most {self._body_bytes} bytes")
            return
        await self._watched(scope, receive, send)

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body without a length is refused where it becomes too long, and one that does not come after a while."""
        seen, whole, until = 0, False, time.monotonic() + _BODY_S

        async def counted() -> dict[str, Any]:
            nonlocal seen, whole
            if whole:
                return await receive()  # that the caller has gone
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, f"the body of a request has to come within {_BODY_S:g} s") from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > self._body_bytes:
                raise HTTPException(413, f"a request has at most {self._body_bytes} bytes")
            return message

        await self._app(scope, counted, send)

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


async def _refuse(send: Send, status: int, what: str) -> None:
    body = f'{{"detail":"{what}"}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
