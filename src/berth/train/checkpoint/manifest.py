"""The manifest of a checkpoint: which step, what it rests on, and the hash of every part.

It is renamed into place after all parts are on the disk. A folder without it is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from berth.train.faults import moment

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One step of everything."""

    step: int
    kind: Literal["full", "delta"]
    base: int | None  # the step that a delta is laid over
    run: dict[str, Any]  # what makes it this training and no other
    parts: dict[str, dict[str, Any]]  # file: sha256 and bytes
    tables: dict[str, str]  # table: file
    progress: dict[str, Any]
    position: dict[str, Any]  # in the data
    format: int = FORMAT


class DamagedError(Exception):
    """A checkpoint that can't be used, and why."""


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step stands."""
    return root / f"step-{step:012d}"


def publish(folder: Path, manifest: Manifest) -> None:
    """All parts are on the disk: from now on this is a checkpoint."""
    text = _text(asdict(manifest))
    temporary = folder / f".{NAME}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"sha256": _hash(text), "manifest": json.loads(text)}, file)
        file.flush()
        os.fsync(file.fileno())
    moment("checkpoint: manifest written")
    temporary.rename(folder / NAME)
    sync_folder(folder)
    sync_folder(folder.parent)
    moment("checkpoint: manifest renamed")


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint; refused if it is not what was written."""
    try:
        document = json.loads((folder / NAME).read_text(encoding="utf-8"))
        told = document["manifest"]
        good = document["sha256"] == _hash(_text(told)) and told["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{NAME} can't be read ({error})") from None
    if not good:
        raise DamagedError(f"{NAME} is not what was written (its hash differs)")
    return Manifest(**told)


def sync_folder(folder: Path) -> None:
    """Names in a folder survive a power cut only after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(told: dict[str, Any]) -> str:
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
