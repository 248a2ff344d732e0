"""Mutual authentication of workers and servers: the shared secret of a run, its proofs, and TLS with keys from it.

Client and server each send a random challenge. The response is an HMAC-SHA256 of both challenges, the role and the
identity that the client claims, so a response is valid for one connection and one side. The handshake is HELLO,
CHALLENGE, PROOF, WELCOME; the client proves the secret first, then the server in its WELCOME. Until both have, only
these four small frames are read, and nothing in them is interpreted beyond its length.

Between hosts this runs inside TLS. Every process derives the same Ed25519 key and self-signed certificate from the
secret. Both sides of a connection present it, and trust nothing else, so a peer that does not know the secret fails the
TLS handshake. Session keys come from an ephemeral key exchange (TLS 1.3): who learns the secret later can't decrypt
what was recorded.

Gateways and launchers import this module too, so it imports neither numpy nor, before it is used, ssl.
"""

from __future__ import annotations

import hmac
import os
import secrets
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from berth.errors import InputError, RefusedError, WireError

if TYPE_CHECKING:
    import ssl

SECRET_VARIABLE = "BERTH_TRAIN_SECRET"
CONTROL_RANK = 0xFFFFFFFF  # of connections that belong to no rank: heartbeats, and results of saves
PROOF_BYTES = 32
_MIN_SECRET_BYTES = 16
_CHALLENGE_BYTES = 32
_IDENTITY = struct.Struct("<IIIIQQ?")
_CERTIFICATE_NAME = "berth training run"


class Secret:
    """The shared secret; it has no readable form."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < _MIN_SECRET_BYTES:
            raise InputError(
                f"a secret of {len(key)} bytes is too short",
                hint=f"give at least {_MIN_SECRET_BYTES}, for example: openssl rand -hex 32",
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
        if SECRET_VARIABLE not in os.environ:
            raise InputError(
                "servers and workers need a shared secret",
                hint=f"set {SECRET_VARIABLE}, or give --secret-file",
            )
        return cls(os.environ[SECRET_VARIABLE].encode())

    def environment(self) -> dict[str, str]:
        """Return the environment variable that passes the secret to child processes."""
        return {SECRET_VARIABLE: self._key.decode()}

    def derive(self, purpose: str) -> bytes:
        """Return a key of 32 bytes for one purpose; it does not reveal the secret."""
        return hmac.digest(self._key, b"berth key " + purpose.encode(), "sha256")

    def proof(self, role: str, identity: bytes, mine: bytes, theirs: bytes) -> bytes:
        """Return one side's response to the challenge of the other."""
        words = b"".join(len(part).to_bytes(4, "little") + part for part in (identity, mine, theirs))
        return hmac.digest(self._key, b"berth " + role.encode() + b"\0" + words, "sha256")


def challenge() -> bytes:
    """Return a random nonce."""
    return secrets.token_bytes(_CHALLENGE_BYTES)


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
        if self._raw or len(payload) != _CHALLENGE_BYTES + _IDENTITY.size:
            raise WireError("invalid HELLO frame")
        self._theirs, self._raw = payload[:_CHALLENGE_BYTES], payload[_CHALLENGE_BYTES:]
        return self._mine

    def proof(self, payload: bytes) -> bytes:
        """Check the proof of the client; returns the proof of the server."""
        expected = self._secret.proof("client", self._raw, self._theirs, self._mine)
        if not self._raw or not hmac.compare_digest(payload, expected):
            raise RefusedError("authentication failed: the secret differs from the server's")
        self.identity = WorkerIdentity.read(self._raw)
        return self._secret.proof("server", self._raw, self._mine, self._theirs)


def tls_context(secret: Secret, *, server: bool) -> ssl.SSLContext:
    """Return the TLS context of one side; both sides are authenticated by the secret."""
    import ssl

    certificate, key = _certificate(secret.derive("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate belongs to the run, not to a host
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    if server:
        context.num_tickets = 0  # sessions are not resumed
    handle = os.memfd_create("berth-tls", os.MFD_CLOEXEC)  # the ssl module reads keys from files only
    try:
        os.write(handle, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context


def is_refusal(error: OSError) -> bool:
    """Return whether an error of a TLS handshake means that the peer has another secret, or no TLS."""
    import ssl

    broken = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, broken)


@lru_cache(maxsize=4)
def _certificate(seed: bytes) -> tuple[bytes, bytes]:
    """Return certificate and key as PEM; equal seeds give equal bytes."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise InputError(
            "encryption between hosts needs the package cryptography",
            hint="pip install cryptography, or --plain on a network that you trust",
        ) from None
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _CERTIFICATE_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))  # clocks of hosts may differ
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
