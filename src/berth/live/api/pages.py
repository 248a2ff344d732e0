"""The dashboard's own files: HTML, CSS and ES modules as they lie in the package, and nothing else.

Only names that were found when the router was made can be asked for, so no path leads anywhere else. Nothing inline
is allowed to run, and no text becomes markup: what people name can't become code, even if the page had a hole.
"""

import hashlib
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Response

WEB = Path(__file__).resolve().parents[1] / "web"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked for again: the tag says whether it is still the same
}


def router(folder: Path = WEB) -> APIRouter:
    """Serves the page at / and its parts below /web/."""
    routes = APIRouter(include_in_schema=False)
    files = {
        path.relative_to(folder).as_posix(): _File(path)
        for path in folder.rglob("*")
        if path.suffix in _TYPES
    }

    @routes.get("/")
    async def index(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return files["index.html"].answer(if_none_match)

    @routes.get("/web/{name:path}")
    async def part(name: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return files[name].answer(if_none_match)

    return routes


class _File:
    """One file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path, self._stamp = path, 0
        self._content, self._tag = b"", ""

    def answer(self, known: str | None) -> Response:
        """The file; or that nothing has changed since it was last given."""
        stamp = self._path.stat().st_mtime_ns
        if stamp != self._stamp:
            self._content, self._stamp = self._path.read_bytes(), stamp
            self._tag = f'"{hashlib.sha256(self._content).hexdigest()[:20]}"'
        headers = HEADERS | {"ETag": self._tag}
        if known is not None and self._tag in (one.strip() for one in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self._content, media_type=_TYPES[self._path.suffix], headers=headers)
