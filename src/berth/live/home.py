"""Where a controller keeps its state, and how the commands on this machine find it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from berth.errors import InputError

ENDPOINT = "endpoint.json"
ATTEMPTS = "attempts"
JOURNAL = "journal.sqlite"


def state_folder(given: str | None) -> Path:
    """The folder that was named, or the one that is usual."""
    if given:
        return Path(given).expanduser().resolve()
    if os.environ.get("BERTH_STATE"):
        return Path(os.environ["BERTH_STATE"]).expanduser().resolve()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "berth"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A controller that answers."""

    url: str
    token: str


def find_endpoint(state: str | None, url: str | None) -> Endpoint:
    """The controller that was named, or the one whose state is on this machine."""
    folder = state_folder(state)
    token = os.environ.get("BERTH_TOKEN", "")
    own = _own_url(folder)
    url = url or os.environ.get("BERTH_URL") or own
    if url is None:
        raise InputError(
            f"no controller has its state in {folder}",
            hint="start one with `berth up`, or name one with --url or BERTH_URL",
        )
    if not token and (state or url == own or _is_here(url)):  # an admin's token is for nobody else
        token = _own_token(folder)
    if not token:
        raise InputError(
            f"there is no token for {url}",
            hint="set BERTH_TOKEN; `berth token add USER` makes one where the controller is",
        )
    return Endpoint(url.rstrip("/"), token)


def _own_url(folder: Path) -> str | None:
    """Where the controller answers whose state is in this folder."""
    try:
        return str(json.loads((folder / ENDPOINT).read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_here(url: str) -> bool:
    try:
        return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    except ValueError:
        return False


def existing_state(given: str | None) -> Path:
    """The state folder, if a controller was ever up there."""
    folder = state_folder(given)
    if not (folder / JOURNAL).is_file():
        raise InputError(
            f"no controller has its state in {folder}",
            hint="start one with `berth up`, or name its folder with --state or BERTH_STATE",
        )
    return folder


def _own_token(folder: Path) -> str:
    from berth.live.api.tokens import read_admin_token

    try:
        return read_admin_token(folder)
    except OSError:
        return ""
