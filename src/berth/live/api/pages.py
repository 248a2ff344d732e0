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
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.suffix in _TYPES}

    @routes.get("/")
    def index(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return _answer(files["index.html"], if_none_match)

    @routes.get("/web/{name:path}")
    def part(name: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return _answer(files[name], if_none_match)

    return routes


def _answer(path: Path, known: str | None) -> Response:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = HEADERS | {"ETag": tag}
    if known is not None and tag in (one.strip() for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[path.suffix], headers=headers)
