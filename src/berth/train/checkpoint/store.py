"""The checkpoint folder of a run: locking, validation and retention."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from berth.errors import InputError
from berth.train.checkpoint import arrays
from berth.train.checkpoint.cleared import next_run, read_note, write_note
from berth.train.checkpoint.manifest import NAME, DamagedError, Manifest, folder_of, read, sync_folder
from berth.train.fault_points import fault_point
from berth.train.tables import State, from_arrays

if TYPE_CHECKING:
    from berth.train.started_by import StartedBy

ASIDE = "set-aside-"
_STEP = re.compile(r"step-(\d{12})")
Notify = Callable[[str], None]


class CheckpointStore:
    """The checkpoints in a folder, by step."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._lock: int | None = None

    def claim(self) -> None:
        """Lock the folder for this process; the lock ends with the process."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"can't be written: {error.strerror}", where=str(self.root)) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise InputError("another run is writing checkpoints here", where=str(self.root)) from None

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def steps(self) -> list[int]:
        """Return the steps with a manifest, usable or not."""
        if not self.root.is_dir():
            return []
        matches = (_STEP.fullmatch(path.name) for path in self.root.iterdir() if (path / NAME).exists())
        return sorted(int(match[1]) for match in matches if match)

    def newest(self, notify: Notify = lambda text: None) -> list[Manifest] | None:
        """Return the newest intact checkpoint as its chain: a full one, then deltas; None if there is none."""
        refused: dict[int, DamagedError] = {}
        for step in reversed(self.steps()):
            try:
                chain = self.chain(step)
            except DamagedError as error:
                refused[step] = error
                notify(f"checkpoint of step {step:,} can't be used: {error}")
            else:
                if refused:
                    notify(f"falling back to step {step:,}")
                return chain
        return None

    def refusals(self) -> list[str]:
        """Return a line for each damaged file, with the steps that depend on it."""
        causes: dict[str, list[int]] = {}
        for step in self.steps():
            try:
                self.chain(step)
            except DamagedError as error:
                file, _, how = error.what.partition(" ")
                causes.setdefault(f"{file} of step {error.step:,} {how}", []).append(step)
        return [f"{_steps(refused)}: {cause}" for cause, refused in causes.items()]

    def chain(self, step: int) -> list[Manifest]:
        """Return the chain of a step, with every file verified."""
        found: list[Manifest] = []
        at: int | None = step
        while at is not None:
            try:
                manifest = read(self.root, at)
            except DamagedError as error:
                raise DamagedError(error.what, at, step) from None
            for name in (name for names in manifest.tables.values() for name in names):
                if name not in manifest.parts:
                    raise DamagedError(f"{name} is missing (it was not written)", at, step)
            for name, expected in manifest.parts.items():
                wrong = arrays.check(folder_of(self.root, at) / name, expected)
                if wrong:
                    raise DamagedError(wrong, at, step)
            found.append(manifest)
            at = manifest.base
        return found[::-1]

    def dense(self, manifest: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arrays and metadata of the dense part."""
        return next(arrays.frames(folder_of(self.root, manifest.step) / manifest.dense))

    def states(self, chain: list[Manifest], table: str) -> Iterator[State]:
        """Yield the states to load, in order, to restore a table; the number of shards may differ."""
        for manifest in chain:
            if table not in manifest.tables:
                raise InputError(
                    f"the checkpoint of step {manifest.step:,} lacks the rows of table {table!r}",
                    where=str(self.root),
                    hint="an earlier version of berth did not save tables of later stages: train again in another "
                    "folder, or with --fresh",
                )
            yield from _as_one_table(self._parts(manifest, table), manifest.kind == "full")

    def _parts(self, manifest: Manifest, table: str) -> Iterator[State]:
        for file in manifest.tables[table]:
            path = folder_of(self.root, manifest.step) / file
            yield from (from_arrays(part) for part, _ in arrays.frames(path))

    def remove_unfinished(self) -> None:
        """Remove folders without a manifest."""
        for path in sorted(self.root.glob("step-*")):
            if _STEP.fullmatch(path.name) and not (path / NAME).exists():
                shutil.rmtree(path)

    def set_aside(self, after: int, notify: Notify) -> None:
        """Rename the checkpoints after the step that a run falls back to; none is deleted."""
        for step in self.steps():
            if step > after:
                folder = folder_of(self.root, step)
                names = (f"{ASIDE}{folder.name}-{n}".removesuffix("-1") for n in count(1))
                name = next(name for name in names if not (self.root / name).exists())
                folder.rename(self.root / name)
                notify(f"checkpoint of step {step:,} is set aside as {name}")
        sync_folder(self.root)

    def clear_once(self, by: StartedBy) -> None:
        """Delete every checkpoint, unless they are of an earlier attempt of the same run; note for which run."""
        last = read_note(self.root)
        run = next_run(self.root, last, by)
        if not last.holds_checkpoints_of(run, is_restart=by.is_restart):
            self._clear()
        write_note(self.root, run)

    def _clear(self) -> None:
        """Delete every checkpoint, including those set aside."""
        for path in self.root.iterdir():
            if _STEP.fullmatch(path.name) or path.name.startswith(f"{ASIDE}step-"):
                shutil.rmtree(path)
        sync_folder(self.root)

    def chains(self) -> list[list[int]]:
        """Return the chain of every step, newest first; within a chain, the full checkpoint is last.

        An unreadable manifest is assumed to be based on the step before it.
        """
        base: dict[int, int | None] = {}
        before: int | None = None
        for step in self.steps():
            try:
                base[step] = read(self.root, step).base
            except (DamagedError, InputError):
                base[step] = before
            before = step
        return [list(_chain_of(step, base)) for step in reversed(base)]

    def prune(self, keep: int, protected: int | None = None) -> None:
        """Delete all but the newest `keep`, the newest one based on another full checkpoint, a protected one, and their
        chains."""
        chains = self.chains()
        needed = {step for chain in chains[:keep] for step in chain}
        needed |= {step for chain in chains if chain[0] == protected for step in chain}
        other = (chain for chain in chains if chain[-1] != chains[0][-1])
        needed.update(next(other, ()))
        for step in self.steps():
            if step not in needed:
                folder = folder_of(self.root, step)
                (folder / NAME).unlink()  # first, so that a partial folder is not a checkpoint
                shutil.rmtree(folder)
        sync_folder(self.root)
        fault_point("checkpoint: old ones removed")


def _chain_of(step: int | None, base: dict[int, int | None]) -> Iterator[int]:
    while step is not None:
        yield step
        step = base.get(step)


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"


def _as_one_table(parts: Iterator[State], full: bool) -> Iterator[State]:
    """Yield parts of several shards as one table: the first replaces it, the last has the pending keys."""
    waiting: list[State] = []
    no_keys, none = np.empty(0, np.int64), np.empty(0, np.int32)
    last: State | None = None
    for number, part in enumerate(parts):
        if len(part.waiting_keys):
            waiting.append(part)
        last = replace(part, whole=full and number == 0, waiting_keys=no_keys, waiting=none)
        yield last
    if waiting and last is not None:
        yield replace(
            last,
            whole=False,
            keys=no_keys,
            records=last.records[:0],
            removed=no_keys,
            waiting_keys=np.concatenate([part.waiting_keys for part in waiting]),
            waiting=np.concatenate([part.waiting for part in waiting]),
        )
