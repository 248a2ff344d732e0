"""The manifest of a checkpoint: its step, the checkpoint it is based on, and the hash of every file.

It is renamed into place after all files are on disk. A folder without a manifest is not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from berth.errors import InputError
from berth.train.fault_points import fault_point
from berth.train.sparse import current_spec

FORMAT = 4  # 3 and earlier: one file per table; 2 and earlier: other names of its fields, see `current_spec`
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of one checkpoint."""

    step: int
    kind: Literal["full", "delta"]
    base: int | None  # the step that a delta is based on
    run: dict[str, Any]  # identity of the run
    parts: dict[str, dict[str, Any]]  # file: sha256 and bytes
    tables: dict[str, list[str]]  # table: files, one for each shard
    progress: dict[str, Any]
    position: dict[str, Any]  # in the data
    format: int = FORMAT
    dense: str = "dense.bin"  # file of the dense part


class DamagedError(Exception):
    """A checkpoint can't be used: which file is damaged, and the step it belongs to."""

    def __init__(self, what: str, step: int, asked: int | None = None) -> None:
        rests = asked is not None and asked != step
        super().__init__(f"it is based on step {step:,}, where {what}" if rests else what)
        self.what = what
        self.step = step


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return root / f"step-{step:012d}"


def publish(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the folder a checkpoint."""
    text = _text(asdict(manifest))
    temporary = folder / f".{NAME}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"sha256": _hash(text), "manifest": json.loads(text)}, file)
        file.flush()
        os.fsync(file.fileno())
    fault_point("checkpoint: manifest written")
    temporary.rename(folder / NAME)
    sync_folder(folder)
    sync_folder(folder.parent)
    fault_point("checkpoint: manifest renamed")


def read(root: Path, step: int) -> Manifest:
    """Read the manifest of a step; raises if it is damaged, or written by a newer version."""
    try:
        file = json.loads((folder_of(root, step) / NAME).read_text(encoding="utf-8"))
        document = file["manifest"]
        intact = file["sha256"] == _hash(_text(document))
        version = int(document["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{NAME} can't be read ({error})", step) from None
    if not intact:
        raise DamagedError(f"{NAME} is corrupted (its hash differs)", step)
    if version > FORMAT:
        raise InputError(
            f"the checkpoint of step {step:,} was written by a newer version of berth (format {version});"
            f" this one reads up to {FORMAT}",
            where=str(root),
            hint="use the version that wrote it, or another folder",
        )
    run = document["run"]
    tables = {name: [one] if isinstance(one, str) else one for name, one in document["tables"].items()}
    if "tables" in run:
        run = {**run, "tables": {name: current_spec(spec) for name, spec in run["tables"].items()}}
    return Manifest(**{**document, "run": run, "tables": tables})


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its entries survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
