"""The folder of a training's checkpoints: which can be used, which are old, who may write."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import InputError
from berth.train.checkpoint import arrays
from berth.train.checkpoint.manifest import NAME, DamagedError, Manifest, folder_of, read, sync_folder
from berth.train.faults import moment
from berth.train.tables import State, from_arrays

ASIDE = "set-aside-"
_STEP = re.compile(r"step-(\d{12})")
Say = Callable[[str], None]


class Shelf:
    """Checkpoints by step, newest last."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._lock: int | None = None

    def claim(self) -> None:
        """Only one training writes here; the claim ends with the process, however it ends."""
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
            raise InputError("another training writes its checkpoints here", where=str(self.root)) from None

    def release(self) -> None:
        """Somebody else may write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def steps(self) -> list[int]:
        """Steps with a manifest, usable or not."""
        if not self.root.is_dir():
            return []
        matches = (_STEP.fullmatch(path.name) for path in self.root.iterdir() if (path / NAME).exists())
        return sorted(int(match[1]) for match in matches if match)

    def newest(self, say: Say = lambda text: None) -> list[Manifest] | None:
        """The newest checkpoint whose hashes hold, with those it rests on: a full one first, then deltas."""
        refused: dict[int, DamagedError] = {}
        for step in reversed(self.steps()):
            try:
                chain = self.chain(step)
            except DamagedError as error:
                refused[step] = error
                say(f"checkpoint of step {step:,} is refused: {error}")
            else:
                if refused:
                    say(f"going back to step {step:,}")
                return chain
        return None

    def refusals(self) -> list[str]:
        """Why no checkpoint can be used: a line for each damaged file, with the steps that rest on it."""
        causes: dict[str, list[int]] = {}
        for step in self.steps():
            try:
                self.chain(step)
            except DamagedError as error:
                file, _, how = error.what.partition(" ")
                causes.setdefault(f"{file} of step {error.step:,} {how}", []).append(step)
        return [f"{_steps(refused)}: {cause}" for cause, refused in causes.items()]

    def chain(self, step: int) -> list[Manifest]:
        """The checkpoint of a step and those it rests on, every part of them checked."""
        found: list[Manifest] = []
        at: int | None = step
        while at is not None:
            try:
                manifest = read(self.root, at)
            except DamagedError as error:
                raise DamagedError(error.what, at, step) from None
            for name, expected in manifest.parts.items():
                wrong = arrays.check(folder_of(self.root, at) / name, expected)
                if wrong:
                    raise DamagedError(wrong, at, step)
            found.append(manifest)
            at = manifest.base
        return found[::-1]

    def dense(self, manifest: Manifest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and meta of the dense part."""
        return next(arrays.frames(folder_of(self.root, manifest.step) / manifest.dense))

    def states(self, chain: list[Manifest], table: str) -> Iterator[State]:
        """What to load, in this order, to have the table as it was; shards need not be those it was saved from."""
        for manifest in chain:
            yield from _one_whole(self._parts(manifest, table), manifest.kind == "full")

    def _parts(self, manifest: Manifest, table: str) -> Iterator[State]:
        if table in manifest.tables:
            path = folder_of(self.root, manifest.step) / manifest.tables[table]
            yield from (from_arrays(part) for part, _ in arrays.frames(path))

    def remove_unfinished(self) -> None:
        """Removes folders that never became a checkpoint."""
        for path in sorted(self.root.glob("step-*")):
            if _STEP.fullmatch(path.name) and not (path / NAME).exists():
                shutil.rmtree(path)

    def set_aside(self, after: int, say: Say) -> None:
        """Renames the checkpoints later than the step a run goes back to; none of them is deleted."""
        for step in self.steps():
            if step > after:
                folder = folder_of(self.root, step)
                names = (f"{ASIDE}{folder.name}-{n}".removesuffix("-1") for n in count(1))
                name = next(name for name in names if not (self.root / name).exists())
                folder.rename(self.root / name)
                say(f"checkpoint of step {step:,} is set aside as {name}")
        sync_folder(self.root)

    def clear(self) -> None:
        """Removes every checkpoint, also those set aside."""
        for path in self.root.iterdir():
            if _STEP.fullmatch(path.name) or path.name.startswith(f"{ASIDE}step-"):
                shutil.rmtree(path)

    def chains(self) -> list[list[int]]:
        """Every step with those it rests on, the full one last; newest first.

        A manifest that can't be read is taken to rest on the step before it.
        """
        base: dict[int, int | None] = {}
        before: int | None = None
        for step in self.steps():
            try:
                base[step] = read(self.root, step).base
            except (DamagedError, InputError):
                base[step] = before
            before = step
        return [list(_followed(step, base)) for step in reversed(base)]

    def retire(self, keep: int) -> None:
        """Removes all but the newest `keep`, the newest that rests on another full one, and all they rest on."""
        chains = self.chains()
        needed = {step for chain in chains[:keep] for step in chain}
        other = (chain for chain in chains if chain[-1] != chains[0][-1])
        needed.update(next(other, ()))
        for step in self.steps():
            if step not in needed:
                folder = folder_of(self.root, step)
                (folder / NAME).unlink()  # first, so that half of it is never taken for a checkpoint
                shutil.rmtree(folder)
        sync_folder(self.root)
        moment("checkpoint: old ones removed")


def _followed(step: int | None, base: dict[int, int | None]) -> Iterator[int]:
    while step is not None:
        yield step
        step = base.get(step)


def _steps(steps: list[int]) -> str:
    return f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"


def _one_whole(parts: Iterator[State], full: bool) -> Iterator[State]:
    """Parts of many shards as those of one table: only the first replaces what is there, the last tells who waits."""
    waiting: list[State] = []
    nobody, none = np.empty(0, np.int64), np.empty(0, np.int32)
    last: State | None = None
    for number, part in enumerate(parts):
        if len(part.waiting_keys):
            waiting.append(part)
        last = replace(part, whole=full and number == 0, waiting_keys=nobody, waiting=none)
        yield last
    if waiting and last is not None:
        yield replace(
            last,
            whole=False,
            keys=nobody,
            records=last.records[:0],
            removed=nobody,
            waiting_keys=np.concatenate([part.waiting_keys for part in waiting]),
            waiting=np.concatenate([part.waiting for part in waiting]),
        )
