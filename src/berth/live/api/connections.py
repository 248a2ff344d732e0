"""Connections: the Unix socket of the account that runs the controller, and a timeout for idle TCP connections.

Requests over the Unix socket come from the same account or from root, as the kernel reports the peer's uid, and need
no token. Requests over TCP need one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from berth.live.home import short_path
from berth.live.private import FILE_MODE

PEER_UID = "peer_uid"  # in the state of a request: the uid at the other end of the Unix socket
MOST_CONNECTIONS = 1_000
_FIRST_REQUEST_S = 3.0  # a TCP connection without a request head by then is closed


class Connection(H11Protocol):
    """One connection over the Unix socket or TCP."""

    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Check the uid of a Unix peer; start the timeout of a TCP connection."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            self._timeout = self.loop.call_later(_FIRST_REQUEST_S, self._close_if_silent)
            return
        uid = peer_uid(sock)
        if uid not in (0, os.getuid()):
            transport.abort()
            return
        self.app_state = self.app_state | {PEER_UID: uid}

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        if self._timeout is not None:
            self._timeout.cancel()
        super().connection_lost(exc)


def peer_uid(sock: Any) -> int:
    """Return the uid of the process at the other end, as the kernel reports it."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


def listen_unix(folder: Path) -> socket.socket:
    """Listen on the Unix socket of a state folder; the caller must hold the store's lock."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(folder) as path:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        path.chmod(FILE_MODE)
    sock.listen(512)
    return sock
