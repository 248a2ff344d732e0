"""Client of a controller over HTTP. It needs only the standard library, so that commands start fast.

The controller of a state folder is reached over its Unix socket; one that is given as a URL, over TCP with a token.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from berth.errors import InputError
from berth.live.home import Endpoint, UnreachableError, short_path

_TIMEOUT_S = 60.0
_UNKNOWN_CALLER, _NOT_NOW = 401, 503
_NO_ROUTE = "Not Found"  # the answer to an unknown route


class _HereConnection(http.client.HTTPConnection):
    """A connection over the Unix socket of a state folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._folder = folder

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        with short_path(self._folder) as path:
            self.sock.connect(str(path))


class Client:
    """A connection to one controller."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.url, self._folder = endpoint.url, endpoint.folder
        parts = urlsplit(endpoint.url)
        self._secure, self._host = parts.scheme == "https", str(parts.hostname)
        self._port, self._prefix = parts.port, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"

    def get(self, *path: str, **query: Any) -> Any:
        """Send a GET request; return the JSON answer."""
        return self._json("GET", path, query, None)

    def post(self, *path: str, body: Any = None) -> Any:
        """Send a POST request; return the JSON answer."""
        return self._json("POST", path, {}, body if body is not None else {})

    def text(self, *path: str, **query: Any) -> tuple[str, dict[str, str]]:
        """Return text and the headers of the answer."""
        with self._request("GET", path, query, None) as response:
            text = self._read(response).decode(errors="replace")
            return text, {k.lower(): v for k, v in response.getheaders()}

    def lines(self, *path: str) -> Iterator[str]:
        """Yield the lines of a stream until it ends."""
        with self._request("GET", path, {}, None) as response:
            while line := response.readline():
                yield line.decode(errors="replace").rstrip("\n")

    def _json(self, method: str, path: tuple[str, ...], query: dict[str, Any], body: Any) -> Any:
        with self._request(method, path, query, body) as response:
            data = self._read(response)
        try:
            return json.loads(data)
        except ValueError:
            raise InputError(f"the server at {self.url} is not a berth controller") from None

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            with response:
                return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _request(
        self, method: str, path: tuple[str, ...], query: dict[str, Any], body: Any
    ) -> http.client.HTTPResponse:
        if "" in path:
            raise InputError("a name is empty", hint="berth queue and berth nodes list them")
        where = f"{self._prefix}/api/v1/" + "/".join(quote(part, safe="") for part in path)
        if given := {name: value for name, value in query.items() if value is not None}:
            where += "?" + urlencode(given)
        data = None if body is None else json.dumps(body).encode()
        connection = self._connection()
        try:
            # A request that was not sent completely may have been carried out, so it is not sent again. But the server
            # may have answered before it closed the connection (too large, too busy).
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, where, data, self._headers)
            response = connection.getresponse()  # it closes the connection when it has been read
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from None
        if response.status >= 400:
            with response:
                raise _refused(response.status, self._read(response), path)
        return response

    def _connection(self) -> http.client.HTTPConnection:
        if self._folder is not None:
            return _HereConnection(self._folder)
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT_S)

    def _unreachable(self, error: Exception) -> UnreachableError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        return UnreachableError(
            f"the controller {f'of {self._folder}' if self._folder else f'at {self.url}'} does not answer: {why}",
            hint="is it up? start it with `berth up`",
        )


def _refused(status: int, body: bytes, path: tuple[str, ...]) -> InputError:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and "detail" in answer:
        detail, hint = answer["detail"], answer.get("hint")
    else:
        said = " ".join(body.decode(errors="replace").split())[:60]
        detail, hint = f"status {status}" + (f": {said}" if said else ""), None
    if detail == _NO_ROUTE and len(path) > 1:
        detail = f"nothing is called {path[1]!r}"
    if isinstance(detail, list):
        detail = "; ".join(map(_complaint, detail[:5]))
    if status == _UNKNOWN_CALLER:
        hint = hint or "set BERTH_TOKEN; `berth token add USER` makes one where the controller is"
    kind = UnreachableError if status == _NOT_NOW else InputError
    return kind(str(detail), hint=hint)


def _complaint(one: dict[str, Any]) -> str:
    """Return a validation error of one field, in the terms of the command line."""
    field = ".".join(str(part) for part in one["loc"] if part not in ("body", "spec"))
    said = re.sub("^(Input|String|List|Value error,) ", "", one["msg"])
    return f"{field}: {said}"
