"""Who may join: both sides prove that they know a secret, and never show it.

Client and server each send a random challenge; the answer is an HMAC-SHA256 of both challenges, the role, and what
the client says about itself. So an answer is good for one connection and one side of it. TLS may be put
around it where the network itself is not trusted.
"""

from __future__ import annotations

import hmac
import os
import secrets
import ssl
from pathlib import Path

from berth.errors import InputError

VARIABLE = "BERTH_TRAIN_SECRET"
CHALLENGE_BYTES = 32
PROOF_BYTES = 32
_LEAST_BYTES = 16


class Secret:
    """The shared secret; it has no readable form."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < _LEAST_BYTES:
            raise InputError(
                f"a secret of {len(key)} bytes is too short",
                hint=f"give at least {_LEAST_BYTES}, for example: openssl rand -hex 32",
            )
        self._key = key

    def __repr__(self) -> str:
        return "Secret(...)"

    @classmethod
    def random(cls) -> Secret:
        """One that nobody knows."""
        return cls(secrets.token_hex(32).encode())

    @classmethod
    def find(cls, path: str | Path | None = None) -> Secret:
        """From a file, or from the environment."""
        if path is not None:
            try:
                return cls(Path(path).read_bytes().strip())
            except OSError as error:
                raise InputError(f"the secret can't be read: {error.strerror}", where=str(path)) from error
        if VARIABLE not in os.environ:
            raise InputError(
                "servers and workers need a shared secret", hint=f"set {VARIABLE}, or name a file"
            )
        return cls(os.environ[VARIABLE].encode())

    def environment(self) -> dict[str, str]:
        """What a launcher adds to the environment of processes it trusts."""
        return {VARIABLE: self._key.decode()}

    def proof(self, role: str, greeting: bytes, mine: bytes, theirs: bytes) -> bytes:
        """The answer of one side to the other's challenge."""
        words = b"".join(len(part).to_bytes(4, "little") + part for part in (greeting, mine, theirs))
        return hmac.digest(self._key, b"berth " + role.encode() + b"\0" + words, "sha256")


def challenge() -> bytes:
    """A number used once."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def same(proof: bytes, other: bytes) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(proof, other)


def server_tls(certificate: str | Path, key: str | Path | None) -> ssl.SSLContext:
    """TLS for a server, from its certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InputError(f"no certificate with its key: {error}", where=f"{certificate}, {key}") from None
    return context


def client_tls(authority: str | Path) -> ssl.SSLContext:
    """TLS for workers, who trust the servers whose certificate this one signed; names are not compared."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # servers of a cluster come and go under any name
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise InputError(f"no certificate of an authority: {error}", where=str(authority)) from None
    return context
