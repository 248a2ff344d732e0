"""Who may do what: bearer tokens with a role, kept only as hashes.

A token is 32 random bytes, so a plain SHA-256 of it can't be turned round or guessed. An admin may do everything; a
user sees the cluster, and acts on jobs of their own only.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from berth.errors import InputError
from berth.live.folder import write_whole

Role = Literal["admin", "user"]
ADMIN_FILE = "admin.token"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    user: str
    role: Role

    def may_touch(self, owner: str) -> bool:
        """Whether jobs of this owner are theirs to change and to read in full."""
        return self.role == "admin" or self.user == owner


class Tokens:
    """The callers of one store, by the hash of their token."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tokens.json"
        self._lock = threading.Lock()
        self._stamp = 0
        self._known: dict[str, Caller] = {}
        self._load()

    def _load(self) -> None:
        try:
            stamp = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if stamp != self._stamp:
            try:
                told = json.loads(self._path.read_text())
                self._known = {name: Caller(**caller) for name, caller in told.items()}
            except (ValueError, TypeError, AttributeError):
                raise InputError(
                    "is damaged", where=str(self._path), hint="delete it, and make the tokens anew"
                ) from None
            self._stamp = stamp

    def add(self, user: str, role: Role) -> str:
        """A new token; it is shown this once and never again."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._load()
            self._known[_hash(token)] = Caller(user, role)
            self._write()
        return token

    def remove(self, user: str) -> int:
        """All tokens of a user stop working."""
        with self._lock:
            self._load()
            gone = [name for name, caller in self._known.items() if caller.user == user]
            for name in gone:
                del self._known[name]
            self._write()
        return len(gone)

    def users(self) -> list[Caller]:
        """Everybody who has one."""
        with self._lock:
            self._load()
            return list(self._known.values())

    def caller(self, token: str) -> Caller | None:
        """Whose token this is."""
        with self._lock:
            self._load()
            return self._known.get(_hash(token))

    def _write(self) -> None:
        write_whole(self._path, json.dumps({name: asdict(caller) for name, caller in self._known.items()}))
        self._path.chmod(0o600)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def admin_token(folder: Path, tokens: Tokens) -> str:
    """The token of whoever runs the controller, in a file that only they can read."""
    path = folder / ADMIN_FILE
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        token = ""
    if token and tokens.caller(token) is not None:
        return token
    token = tokens.add("admin", "admin")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return token


def read_admin_token(folder: Path) -> str:
    """The same, for a command on this machine."""
    return (folder / ADMIN_FILE).read_text().strip()
