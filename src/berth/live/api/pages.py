"""Serves the dashboard's files: HTML, CSS and ES modules.

The security policy forbids inline scripts and turning text into markup, so that a name chosen by a user can't become
code even if the page had a flaw.
"""

import hashlib
import os
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

WEB = Path(__file__).resolve().parents[1] / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # stored by browsers, and validated by its ETag at each use
}


class _HashedFiles(StaticFiles):
    """Files with a hash of their content as ETag: the times of files in a reproducible image never change."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        content_hash = hashlib.sha256(Path(full_path).read_bytes()).hexdigest()
        tag = {"ETag": f'"{content_hash}"'}
        response = FileResponse(full_path, status_code, tag, stat_result=stat_result)
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


def router(folder: Path = WEB) -> APIRouter:
    """Serve the page at / and its files below /web/."""
    routes, files = APIRouter(include_in_schema=False), _HashedFiles(directory=folder)

    async def respond(request: Request, name: str) -> Response:
        kind = _TYPES.get(Path(name).suffix)
        if kind is None or "\0" in name:
            raise HTTPException(404, "no such file")
        response = await files.get_response(name, request.scope)
        response.headers.update(_HEADERS)
        if response.status_code == 200:
            response.headers["Content-Type"] = kind
        return response

    @routes.get("/")
    async def index(request: Request) -> Response:
        return await respond(request, "index.html")

    @routes.get("/web/{name:path}")
    async def file(request: Request, name: str) -> Response:
        return await respond(request, name)

    return routes
