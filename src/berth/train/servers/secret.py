"""The shared secret of a run, and the keys derived from it."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from berth.errors import InputError

VARIABLE = "BERTH_TRAIN_SECRET"
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
