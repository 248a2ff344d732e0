"""The state folder of a controller, and how commands find the controller."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from berth.errors import InputError

ENDPOINT = "endpoint.json"
SOCKET = "controller.sock"
JOURNAL = "journal.sqlite"
OLD_ATTEMPTS = "attempts"  # older versions kept them in the state folder


class UnreachableError(InputError):
    """The controller does not answer: it is down or restarting."""

    exit_code = 75  # EX_TEMPFAIL: the same command may work in a moment


def state_folder(given: str | None) -> Path:
    """Return the given state folder, else the default."""
    if given:
        return Path(given).expanduser().resolve()
    if os.environ.get("BERTH_STATE"):
        return Path(os.environ["BERTH_STATE"]).expanduser().resolve()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "berth"


def usual_work_folder(state: Path, name: str) -> Path:
    """Return the default folder of attempts of a store, beside its state folder."""
    return state.with_name(f"{state.name}-work") / name


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a controller: a URL with a token, or the Unix socket of its state folder."""

    url: str
    token: str = ""
    folder: Path | None = None  # of the socket


def find_endpoint(state: str | None, url: str | None) -> Endpoint:
    """Return the controller at a URL, or the one of a state folder on this machine.

    A URL needs a token, in BERTH_TOKEN. The controller of a state folder is reached over its Unix socket, which
    identifies the caller by account, or by token if BERTH_TOKEN is set.
    """
    token = os.environ.get("BERTH_TOKEN", "")
    named = url or (None if state else remote_url())
    if named:
        if not _is_url(named):
            where = "--url" if url else "BERTH_URL"
            raise InputError(
                f"{named!r} is not a valid URL", where=where, hint="write it like http://127.0.0.1:7070"
            )
        if not token:
            raise InputError(
                f"there is no token for {named}",
                hint="set BERTH_TOKEN; `berth token add USER` makes one where the controller is",
            )
        return Endpoint(named.rstrip("/"), token)
    folder = existing_state(state, "name one with --url or BERTH_URL")
    return Endpoint(_own_url(folder) or "http://localhost", token, folder)


def remote_url() -> str:
    """Return the URL of the controller that commands ask unless an option names another; empty: none."""
    return os.environ.get("BERTH_URL", "")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(known) and not re.search(r"[\s\x00-\x1f]", text)


def _own_url(folder: Path) -> str | None:
    """Return the URL of the controller of a state folder, for people; commands do not use it."""
    try:
        return str(json.loads((folder / ENDPOINT).read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[Path]:
    """Yield a path of the socket in a folder that is short enough for an address."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{handle}") / SOCKET
    finally:
        os.close(handle)


def existing_state(given: str | None, otherwise: str = "name its folder with --state or BERTH_STATE") -> Path:
    """Return the state folder; refuse one without a journal. `otherwise`: how to name another controller."""
    folder = state_folder(given)
    if not (folder / JOURNAL).is_file():
        raise InputError(
            f"no controller has its state in {folder}", hint=f"start one with `berth up`, or {otherwise}"
        )
    return folder
