"""docs/reference/api.md: every path of the HTTP API, from its OpenAPI description."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

HEAD = """# HTTP API

Under `/api/v1`, with `Authorization: Bearer TOKEN`. Bodies and responses are JSON; the controller describes itself in
full at `/openapi.json`, and `/metrics` is for Prometheus. Times are Unix times in seconds, durations are seconds,
sizes bytes. An error is a status and `{"detail": "...", "hint": "..."}`: 400 can't be carried out, 401 no valid token,
403 not allowed, 404 not found, 409 in conflict with the current state, 413 too large, 429 too many requests, 503 the
journal could not be written.

"""
TITLES = {"jobs": "Jobs", "cluster": "The cluster", "dashboard": "What the dashboard reads"}


def page() -> str:
    """Return the page: all paths by topic."""
    schema = _schema()
    groups: dict[str, list[str]] = {tag: [] for tag in TITLES}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/api/v1/"):
                row = _row(path.removeprefix("/api/v1"), method.upper(), operation, schema)
                groups[operation["tags"][0]].append(row)
    head = "| request | what it does | takes |\n|---|---|---|\n"
    return HEAD + "\n".join(f"## {TITLES[tag]}\n\n{head}{''.join(rows)}" for tag, rows in groups.items())


def _schema() -> dict[str, Any]:
    """The OpenAPI description of a controller that is not started."""
    from berth.live.server import Options, Server

    with tempfile.TemporaryDirectory() as folder:
        server = Server(Options(Path(folder)))
        schema: dict[str, Any] = server.app.openapi()
        server.controller.close()
    return schema


def _row(path: str, method: str, operation: dict[str, Any], schema: dict[str, Any]) -> str:
    names = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in body:
        names += schema["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]["properties"]
    takes = ", ".join(f"`{name}`" for name in names)
    return f"| `{method} {path}` | {operation['description']} | {takes} |\n"
