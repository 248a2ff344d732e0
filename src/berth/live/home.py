"""Where a controller keeps its state, and how the commands on this machine find it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from berth.errors import InputError

ENDPOINT = "endpoint.json"
ATTEMPTS = "attempts"


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
    from berth.live.api.tokens import read_admin_token

    folder = state_folder(state)
    token = os.environ.get("BERTH_TOKEN", "")
    url = url or os.environ.get("BERTH_URL")
    if url is None:
        try:
            url = str(json.loads((folder / ENDPOINT).read_text())["url"])
        except (OSError, ValueError, KeyError):
            raise InputError(
                f"no controller has its state in {folder}",
                hint="start one with `berth up`, or name one with --url or BERTH_URL",
            ) from None
    return Endpoint(url.rstrip("/"), token or read_admin_token(folder))
