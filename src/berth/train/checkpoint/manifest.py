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

from berth.errors import InputError
from berth.train.faults import moment

FORMAT = 2
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
    dense: str = "dense.bin"  # file of the dense part


class DamagedError(Exception):
    """A checkpoint that can't be used: the file that is wrong and how, and the step it belongs to."""

    def __init__(self, what: str, step: int, asked: int | None = None) -> None:
        rests = asked is not None and asked != step
        super().__init__(f"it rests on step {step:,}, where {what}" if rests else what)
        self.what = what
        self.step = step


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


def read(root: Path, step: int) -> Manifest:
    """The manifest of a step; refused if it is not what was written, or written by a newer berth."""
    try:
        document = json.loads((folder_of(root, step) / NAME).read_text(encoding="utf-8"))
        told = document["manifest"]
        good = document["sha256"] == _hash(_text(told))
        version = int(told["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{NAME} can't be read ({error})", step) from None
    if not good:
        raise DamagedError(f"{NAME} is not what was written (its hash differs)", step)
    if version > FORMAT:
        raise InputError(
            f"the checkpoint of step {step:,} is written by a newer berth (format {version});"
            f" this one reads up to {FORMAT}",
            where=str(root),
            hint="use the berth that wrote it, or another folder",
        )
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
