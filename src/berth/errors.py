"""The error tree of berth.

    BerthError
    ├── InputError            the user can fix it: one message, exit code 2, no traceback
    │   ├── DivergedError     the loss or the weights of a training are not finite any more
    │   ├── QuantityError     "25 GBs" is not a bandwidth
    │   ├── SpecError         a YAML file is invalid, at file:line:column
    │   ├── TraceError        a trace can't be read, or has bad rows and `--strict`
    │   └── UnknownNameError  no such preset, model, policy ...; suggests a similar name
    └── ServerError           a sparse server is gone, or returned an error
        ├── RefusedError      it rejected the handshake: secret, generation or tables differ
        ├── WaitError         it timed out waiting for another worker, which it names
        └── WireError         received bytes are not a berth message

Any other exception is a bug in berth and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

INTERRUPTED = 130  # exit code after Ctrl-C, as in shells


class BerthError(Exception):
    """Base of every error that berth raises on purpose."""

    exit_code = 2  # of a command that ends with it


class InputError(BerthError, ValueError):
    """Invalid user input: what is wrong, where, and what to do."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  {self.hint}" if self.hint else head


class DivergedError(InputError):
    """A loss, dense weights or rows that became NaN or infinite."""


class QuantityError(InputError):
    """A quantity that can't be parsed."""


class SpecError(InputError):
    """A YAML specification that can't be used."""


class TraceError(InputError):
    """A trace that can't be read."""


class UnknownNameError(InputError):
    """An unknown name."""

    def __init__(self, what: str, name: str, known: Iterable[str], *, where: str | None = None) -> None:
        names = sorted(known)
        near = nearest(name, names)
        hint = (
            f"did you mean {near!r}?" if near else f"known: {', '.join(names)}" if names else "there are none"
        )
        super().__init__(f"no {what} is called {name!r}", where=where, hint=hint)
        self._given = what, name, tuple(names), where

    def __reduce__(self) -> tuple[Any, ...]:
        """Processes pass errors on by pickle."""
        return _unknown_name, self._given


def _unknown_name(what: str, name: str, known: tuple[str, ...], where: str | None) -> UnknownNameError:
    return UnknownNameError(what, name, known, where=where)


class ForeignValueError(RuntimeError):
    """A value of the rendezvous store without the run's signature; a `RuntimeError`, like all errors of that store."""


class ServerError(BerthError):
    """A sparse server is gone or failed."""


class RefusedError(ServerError):
    """A sparse server rejected the handshake."""


class WaitError(ServerError):
    """A sparse server timed out waiting for another worker."""


class WireError(ServerError):
    """Bytes that are not a berth message, or are damaged: the connection is unusable."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None."""
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None
