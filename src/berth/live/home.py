"""Where a controller keeps its state, and how the commands on this machine find it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from berth.errors import InputError

ENDPOINT = "endpoint.json"
SOCKET = "controller.sock"
JOURNAL = "journal.sqlite"
OLD_ATTEMPTS = "attempts"  # an older berth kept them in the state folder


class UnreachableError(InputError):
    """The controller does not answer: it is down, or starting again."""

    exit_code = 75  # EX_TEMPFAIL: the same command may work in a moment


def state_folder(given: str | None) -> Path:
    """The folder that was named, or the one that is usual."""
    if given:
        return Path(given).expanduser().resolve()
    if os.environ.get("BERTH_STATE"):
        return Path(os.environ["BERTH_STATE"]).expanduser().resolve()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "berth"


def usual_work_folder(state: Path, name: str) -> Path:
    """Return the folder of attempts of a store: beside its state, never in it, and no other store's."""
    return state.with_name(f"{state.name}-work") / name


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A controller that answers: at a URL with a token, or at the Unix socket of its state folder."""

    url: str
    token: str = ""
    folder: Path | None = None  # of the socket


def find_endpoint(state: str | None, url: str | None) -> Endpoint:
    """The controller that was named by its URL, or the one whose state is on this machine.

    A URL needs a token, in BERTH_TOKEN. The controller of a state folder is asked over its Unix socket, where the
    account says who asks; with BERTH_TOKEN set, the token does.
    """
    token = os.environ.get("BERTH_TOKEN", "")
    named = url or (None if state else os.environ.get("BERTH_URL"))
    if named is not None:
        if not token:
            raise InputError(
                f"there is no token for {named}",
                hint="set BERTH_TOKEN; `berth token add USER` makes one where the controller is",
            )
        return Endpoint(named.rstrip("/"), token)
    folder = state_folder(state)
    if not (folder / JOURNAL).exists():
        raise InputError(
            f"no controller has its state in {folder}",
            hint="start one with `berth up`, or name one with --url or BERTH_URL",
        )
    return Endpoint(_own_url(folder) or "http://localhost", token, folder)


def _own_url(folder: Path) -> str | None:
    """Where people reach the controller whose state is in this folder; commands do not use it."""
    try:
        return str(json.loads((folder / ENDPOINT).read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[Path]:
    """Name the socket in a folder by a path that fits into an address, however long the folder's own is."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{handle}") / SOCKET
    finally:
        os.close(handle)


def existing_state(given: str | None) -> Path:
    """The state folder, if a controller was ever up there."""
    folder = state_folder(given)
    if not (folder / JOURNAL).is_file():
        raise InputError(
            f"no controller has its state in {folder}",
            hint="start one with `berth up`, or name its folder with --state or BERTH_STATE",
        )
    return folder
