"""The one error tree.

    BerthError
    ├── InputError            the user can mend it: one message, exit code 2, no traceback
    │   ├── QuantityError     "25 GBs" is not a bandwidth
    │   ├── SpecError         a YAML file says something berth can't use, at file:line:column
    │   ├── TraceError        a trace can't be read, or holds rows that `--strict` refuses
    │   └── UnknownNameError  no such preset, model, policy ...; suggests the nearest
    └── ServerError           a sparse server is gone, or answers with an error of its own
        ├── RefusedError      it does not let us in: secret, generation or tables differ
        ├── WaitError         it waited too long for another worker, and says for whom
        └── WireError         what came over the wire is not what berth sends

Anything else that escapes is a bug of berth's own and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BerthError(Exception):
    """Base of every error that berth raises on purpose."""

    exit_code = 2  # of a command that ends with it


class InputError(BerthError, ValueError):
    """Something the user gave can't be used: what, where, and what to do about it."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  {self.hint}" if self.hint else head


class QuantityError(InputError):
    """A quantity that is not written as berth reads it."""


class SpecError(InputError):
    """A YAML specification that can't be used."""


class TraceError(InputError):
    """A trace that can't be read."""


class UnknownNameError(InputError):
    """A name that nothing answers to."""

    def __init__(self, what: str, name: str, known: Iterable[str], *, where: str | None = None) -> None:
        names = sorted(known)
        near = nearest(name, names)
        hint = (
            f"did you mean {near!r}?" if near else f"known: {', '.join(names)}" if names else "there is none"
        )
        super().__init__(f"no {what} is called {name!r}", where=where, hint=hint)


class ServerError(BerthError):
    """A sparse server is gone, or something went wrong there."""


class RefusedError(ServerError):
    """A sparse server does not let us in."""


class WaitError(ServerError):
    """A sparse server waited too long for another worker."""


class WireError(ServerError):
    """Bytes that are not berth's, or are damaged: the connection can't be used any longer."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most likely a slip of, if there is one."""
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None
