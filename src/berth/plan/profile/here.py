"""Where measurements of this machine are stored: `$BERTH_HOME`, or berth's folder of the user's configuration."""

from __future__ import annotations

import os
from pathlib import Path

from berth.errors import InputError


def folder() -> Path:
    """Return the folder for what `berth profile --here` measured; it may not exist."""
    if home := os.environ.get("BERTH_HOME"):
        return Path(home).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "berth" / "profiles"


def stored() -> list[Path]:
    """Return the files that are stored there."""
    return sorted(folder().glob("*.yaml")) if folder().is_dir() else []


def make_folder() -> Path:
    """Return that folder, created if needed."""
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"can't be created: {error.strerror}",
            where=str(path),
            hint="set BERTH_HOME to a folder of your own",
        ) from None
    return path
