"""Where a server is: by TCP from anywhere, by a Unix socket on its own machine."""

from __future__ import annotations

import json
import secrets
import socket
import struct
import sys
from dataclasses import asdict, dataclass

from berth.errors import InputError


@dataclass(frozen=True, slots=True)
class Address:
    """One server of a run."""

    host: str
    port: int
    local: str = ""  # abstract Unix name: vanishes with the process; empty where there are none

    def to_json(self) -> str:
        """One line, as a launcher reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Address:
        """From that line."""
        try:
            facts = json.loads(text)
            return cls(str(facts["host"]), int(facts["port"]), str(facts["local"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError("this is not the address of a server", where=text[:80]) from error

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 lets the system choose."""
    try:
        return socket.create_server((host, port), backlog=64)
    except OSError as error:
        raise InputError(f"can't listen: {error.strerror}", where=f"{host}:{port}") from error


def listen_local() -> tuple[socket.socket | None, str]:
    """A Unix socket without a file, and its name."""
    if sys.platform != "linux":
        return None, ""
    name = f"berth-{secrets.token_hex(16)}"
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.bind("\0" + name)
    local.listen(64)
    return local, name


def tune(peer: socket.socket) -> None:
    """Send small frames at once, and notice within half a minute when the other machine is gone."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def peer_user(local: socket.socket) -> int:
    """The user on the other side of a Unix socket."""
    raw = local.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])
