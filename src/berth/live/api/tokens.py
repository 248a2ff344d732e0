"""Bearer tokens with a role, stored only as hashes.

A token is 32 random bytes, so a plain SHA-256 of it can't be inverted or guessed. An admin may do everything; a user
sees the cluster and acts only on their own jobs. The account that runs the controller needs no token: the Unix socket
identifies it by its uid.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from berth.errors import InputError
from berth.live.private import FILE_MODE, write_private

Role = Literal["admin", "user"]
_OLD_ADMIN_FILE = "admin.token"  # where older versions kept an admin's token
_CODE_S = 120.0  # validity of a login code
_MOST_CODES = 10  # valid login codes per user


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user."""

    user: str
    role: Role
    # the hash of the token; empty if the account was identified by its uid
    token: str = field(default="", compare=False, repr=False)
    session: bool = field(default=False, compare=False)  # whether it is a page's token

    def may_touch(self, owner: str) -> bool:
        """Whether the caller may change jobs of this owner and read them in full."""
        return self.role == "admin" or self.user == owner


OWNER = Caller("admin", "admin")  # the account that runs the controller, or root


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    user: str
    role: Role
    label: str = ""
    expires: float | None = None  # Unix time
    # of a page's token: the hash of the token it was created for, empty if that was the account itself
    behind: str | None = None

    @property
    def valid(self) -> bool:
        """Whether the token has not expired."""
        return self.expires is None or time.time() < self.expires


class Tokens:
    """The tokens of one state folder, by their hashes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tokens.json"
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._known: dict[str, Token] = {}
        self._load()

    def _load(self) -> None:
        try:
            facts = self._path.stat()
        except FileNotFoundError:
            self._known, self._stamp = {}, None
            return
        stamp = facts.st_mtime_ns, facts.st_ino
        if stamp != self._stamp:
            try:
                plain = json.loads(self._path.read_text())
                self._known = {name: Token(**token) for name, token in plain.items()}
            except (ValueError, TypeError, AttributeError):
                raise InputError(
                    "is damaged", where=str(self._path), hint="delete it and create the tokens again"
                ) from None
            self._stamp = stamp

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the file against other processes while it is read and written."""
        lock = os.open(self._path.with_name("tokens.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            with self._lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._load()
                yield
        finally:
            os.close(lock)

    def add(self, user: str, role: Role, *, label: str = "", expires: float | None = None) -> str:
        """Create a token and return it; only its hash is stored."""
        token = secrets.token_urlsafe(32)
        with self._changing():
            self._known[_hash(token)] = Token(user, role, label, expires)
            self._write()
        return token

    def add_session(self, caller: Caller, expires: float) -> str | None:
        """Create a token for a page, valid as long as the caller's own; None if that one has ended."""
        token = secrets.token_urlsafe(32)
        made = Token(caller.user, caller.role, "dashboard", expires, caller.token)
        with self._changing():
            if not self._valid(made):
                return None
            self._known[_hash(token)] = made
            self._write()
        return token

    def remove(self, user: str) -> int:
        """Revoke all tokens of a user and return their number."""
        with self._changing():
            gone = [name for name, token in self._known.items() if token.user == user]
            for name in gone:
                del self._known[name]
            self._write()
        return len(gone)

    def revoke(self, token: str) -> None:
        """Revoke one token."""
        with self._changing():
            if self._known.pop(_hash(token), None) is not None:
                self._write()

    def listed(self) -> list[Token]:
        """Return all valid tokens."""
        with self._lock:
            self._load()
            return [token for token in self._known.values() if self._valid(token)]

    def caller(self, token: str) -> Caller | None:
        """Return the caller that a token belongs to, None if it is not valid."""
        with self._lock:
            self._load()
            name = _hash(token)
            found = self._known.get(name)
            if found is None or not self._valid(found):
                return None
        return Caller(found.user, found.role, name, session=found.behind is not None)

    def _valid(self, token: Token) -> bool:
        """Whether a token and the one it was created for are both known and not expired."""
        behind = self._known.get(token.behind) if token.behind else None
        return token.valid and (not token.behind or (behind is not None and behind.valid))

    def _write(self) -> None:
        kept = {name: asdict(token) for name, token in self._known.items() if self._valid(token)}
        write_private(self._path, json.dumps(kept))


class LoginCodes:
    """Login codes: each opens the dashboard once, so that a token is never part of a command line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Caller, float]] = {}

    def add(self, caller: Caller) -> str:
        """Create a code for a caller; beyond the limit, the oldest one becomes invalid."""
        code, now = secrets.token_urlsafe(16), time.monotonic()
        with self._lock:
            self._known = {name: one for name, one in self._known.items() if one[1] > now}
            own = [name for name, one in self._known.items() if one[0] == caller]
            for name in own[: max(0, len(own) + 1 - _MOST_CODES)]:
                del self._known[name]
            self._known[code] = (caller, now + _CODE_S)
        return code

    def take(self, code: str) -> Caller | None:
        """Return the caller that a code belongs to and invalidate it."""
        with self._lock:
            found = self._known.pop(code, None)
        return found[0] if found is not None and found[1] > time.monotonic() else None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def drop_old_admin_token(folder: Path, tokens: Tokens) -> None:
    """Revoke the token that an older version left in a file that jobs could read."""
    path = folder / _OLD_ADMIN_FILE
    try:
        tokens.revoke(path.read_text().strip())
    except FileNotFoundError:
        return
    path.unlink()
