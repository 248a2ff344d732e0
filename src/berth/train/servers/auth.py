"""Mutual authentication of workers and servers, and the handshake that opens a connection.

Client and server each send a random challenge. The response is an HMAC-SHA256 of both challenges, the role and the
identity that the client claims, so a response is valid for one connection and one side. Between hosts this runs inside
TLS (`tls.py`).

The handshake is HELLO, CHALLENGE, PROOF, WELCOME; the client proves the secret first, then the server in its WELCOME.
Until both have, only these four small frames are read, and nothing in them is interpreted beyond its length.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import InputError, RefusedError, WireError
from berth.train.servers.protocol import (
    HEADER,
    MAX_HANDSHAKE_BYTES,
    Flag,
    Header,
    Kind,
    error_from_json,
    read_header,
    unpack,
)

VARIABLE = "BERTH_TRAIN_SECRET"
CHALLENGE_BYTES = 32
PROOF_BYTES = 32
_MIN_BYTES = 16


class Secret:
    """The shared secret; it has no readable form."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < _MIN_BYTES:
            raise InputError(
                f"a secret of {len(key)} bytes is too short",
                hint=f"give at least {_MIN_BYTES}, for example: openssl rand -hex 32",
            )
        self._key = key

    def __repr__(self) -> str:
        return "Secret(...)"

    @classmethod
    def random(cls) -> Secret:
        """Return a new random secret."""
        return cls(secrets.token_hex(32).encode())

    @classmethod
    def find(cls, path: str | Path | None = None) -> Secret:
        """Read the secret from a file, or from the environment."""
        if path is not None:
            try:
                return cls(Path(path).read_bytes().strip())
            except OSError as error:
                raise InputError(f"the secret can't be read: {error.strerror}", where=str(path)) from error
        if VARIABLE not in os.environ:
            raise InputError(
                "servers and workers need a shared secret", hint=f"set {VARIABLE}, or give --secret-file"
            )
        return cls(os.environ[VARIABLE].encode())

    def environment(self) -> dict[str, str]:
        """Return the environment variable that passes the secret to child processes."""
        return {VARIABLE: self._key.decode()}

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for one purpose; it does not reveal the secret."""
        return hmac.digest(self._key, b"berth key " + purpose.encode(), "sha256")

    def proof(self, role: str, identity: bytes, mine: bytes, theirs: bytes) -> bytes:
        """Return one side's response to the challenge of the other."""
        words = b"".join(len(part).to_bytes(4, "little") + part for part in (identity, mine, theirs))
        return hmac.digest(self._key, b"berth " + role.encode() + b"\0" + words, "sha256")


def challenge() -> bytes:
    """Return a random nonce."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def same_digest(proof: bytes, other: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof, other)


_IDENTITY = struct.Struct("<IIIIQQ?")


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The identity that a worker claims; its proof covers it."""

    rank: int
    workers: int
    index: int  # of the server
    servers: int
    generation: int  # increases with every restart of the run
    session: int  # random, per worker process
    shared: bool = False  # requests shared memory

    def pack(self) -> bytes:
        """Return the identity as bytes."""
        return _IDENTITY.pack(
            self.rank,
            self.workers,
            self.index,
            self.servers,
            self.generation,
            self.session,
            self.shared,
        )

    @classmethod
    def read(cls, raw: bytes) -> WorkerIdentity:
        """Parse an identity."""
        if len(raw) != _IDENTITY.size:
            raise WireError("invalid HELLO frame")
        return cls(*_IDENTITY.unpack(raw))


class ServerHandshake:
    """The server side of the handshake; `identity` is set once the client is authenticated."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._mine = challenge()
        self._theirs = b""
        self._raw = b""
        self.identity: WorkerIdentity | None = None

    def hello(self, payload: bytes) -> bytes:
        """Handle HELLO; returns the challenge."""
        if self._raw or len(payload) != CHALLENGE_BYTES + _IDENTITY.size:
            raise WireError("invalid HELLO frame")
        self._theirs, self._raw = payload[:CHALLENGE_BYTES], payload[CHALLENGE_BYTES:]
        return self._mine

    def proof(self, payload: bytes) -> bytes:
        """Check the proof of the client; returns the proof of the server."""
        expected = self._secret.proof("client", self._raw, self._theirs, self._mine)
        if not self._raw or not same_digest(payload, expected):
            raise RefusedError("authentication failed: the secret differs from the server's")
        self.identity = WorkerIdentity.read(self._raw)
        return self._secret.proof("server", self._raw, self._mine, self._theirs)


def client_handshake(
    peer: socket.socket, identity: WorkerIdentity, secret: Secret, deadline_s: float
) -> dict[str, Any]:
    """Run the client side over a blocking socket; returns the JSON of WELCOME."""
    raw, mine = identity.pack(), challenge()
    _send(peer, Kind.HELLO, mine + raw, deadline_s)
    theirs = _receive(peer, Kind.CHALLENGE, deadline_s)
    _send(peer, Kind.PROOF, secret.proof("client", raw, mine, theirs), deadline_s)
    welcome = _receive(peer, Kind.WELCOME, deadline_s)
    if not same_digest(welcome[:PROOF_BYTES], secret.proof("server", raw, theirs, mine)):
        raise RefusedError("authentication failed: the server does not know the secret")
    info: dict[str, Any] = json.loads(welcome[PROOF_BYTES:])
    return info


def _send(peer: socket.socket, kind: Kind, payload: bytes, deadline_s: float) -> None:
    _set_deadline(peer, deadline_s)
    header = Header(kind, Flag.NONE, 0, 0, 0, len(payload), 0, 0)
    peer.sendall(header.pack() + payload)


def _receive(peer: socket.socket, kind: Kind, deadline_s: float) -> bytes:
    header = read_header(_receive_exactly(peer, HEADER.size, deadline_s), MAX_HANDSHAKE_BYTES)
    payload = _receive_exactly(peer, header.length, deadline_s)
    if header.kind == Kind.ERROR:
        raise error_from_json(json.loads(unpack(np.frombuffer(payload, np.uint8))[0].tobytes()))
    if header.kind != kind:
        raise WireError(f"expected {kind.name}, got {header.kind.name}")
    return bytes(payload)


def _receive_exactly(peer: socket.socket, length: int, deadline_s: float) -> bytearray:
    """Read exactly `length` bytes: a file descriptor may follow them."""
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        _set_deadline(peer, deadline_s)
        count = peer.recv_into(view[have:])
        if count == 0:
            raise ConnectionResetError("the peer closed the connection")
        have += count
    return data


def _set_deadline(peer: socket.socket, deadline_s: float) -> None:
    peer.settimeout(max(deadline_s - time.monotonic(), 0.001))
