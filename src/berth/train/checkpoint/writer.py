"""Checkpoints written in a background thread.

At the end of a step everything is copied (or, for tables that do not fit in memory, written as it is read); a thread
does the rest. What could not be written is said, the training goes on, and the next checkpoint is a full one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from berth.train.checkpoint.arrays import ArrayFile
from berth.train.checkpoint.manifest import NAME, Manifest, folder_of, publish, sync_folder
from berth.train.checkpoint.shelf import Shelf
from berth.train.faults import moment
from berth.train.sparse import SparseStore
from berth.train.tables import State, arrays_of

Say = Callable[[str], None]
_BASES = 2  # full checkpoints that do not share a file


@dataclass(frozen=True, slots=True)
class Moment:
    """What a checkpoint is of, apart from tables."""

    step: int
    arrays: Mapping[str, NDArray[Any]]
    meta: Any
    run: dict[str, Any]
    progress: dict[str, Any]
    position: dict[str, Any]


@dataclass(slots=True)
class Job:
    """A checkpoint on its way to the disk."""

    moment: Moment
    base: int | None
    again: str = ""  # in the names of files that stand beside those of an earlier save of this step
    states: list[tuple[str, State]] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)

    @property
    def dense(self) -> str:
        """The file of the dense part."""
        return f"dense{self.again}.bin"


class Writer:
    """Writes checkpoints to a shelf, one at a time."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        keep: int = 3,
        full_every: int = 8,
        streamed: bool = False,
        say: Say = lambda text: None,
    ) -> None:
        self._shelf = shelf
        self._keep = keep
        self._full_every = full_every
        self._streamed = streamed  # tables are larger than memory: written as they are read
        self._say = say
        self._thread: threading.Thread | None = None
        self._last: int | None = None  # step of the newest checkpoint
        self._deltas = 0
        self.failure: OSError | None = None
        self._bug: Exception | None = None

    def resumed(self, chain: list[Manifest]) -> None:
        """The next checkpoint may be a delta over this one."""
        self._last, self._deltas = chain[-1].step, len(chain) - 1

    @property
    def last(self) -> int | None:
        """The step of the newest checkpoint that is safe."""
        self.wait()
        return self._last

    def save(self, what: Moment, store: SparseStore) -> None:
        """Takes everything as of this step; returns when the training may go on.

        A step that is saved again is replaced at once, by the rename of its manifest. Full are: the first two, one of
        `full_every`, the one after a failure, and a step that is saved again.
        """
        self.wait()
        twice = what.step == self._last
        full = (
            twice
            or self._last is None
            or self.failure is not None
            or self._deltas >= self._full_every - 1
            or len({chain[-1] for chain in self._shelf.chains()}) < _BASES
        )
        job = Job(what, None if full else self._last, self._unused(what.step) if twice else "")
        parts = store.save(changed_only=not full)
        self.failure = None
        try:
            if self._streamed:
                self._make_folder(job)
                self._write_tables(job, parts)
            else:
                job.states = list(parts)
        except OSError as error:
            self._fail(job, error)
            return
        moment("checkpoint: snapshot taken")
        self._thread = threading.Thread(target=self._write, args=(job,), name="berth-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until what was begun is on the disk, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._bug is not None:
            raise self._bug

    def _write(self, job: Job) -> None:
        step = job.moment.step
        try:
            if not self._streamed:
                self._make_folder(job)
                self._write_tables(job, job.states)
            folder = folder_of(self._shelf.root, step)
            with ArrayFile(folder / job.dense) as file:
                file.write(job.moment.arrays, job.moment.meta)
                job.parts[job.dense] = file.finish()
            sync_folder(folder)
            moment("checkpoint: parts written")
            publish(folder, self._manifest(job))
            self._last, self._deltas = step, 0 if job.base is None else self._deltas + 1
            self._retire(job)
        except OSError as error:
            self._fail(job, error)
        except Exception as error:  # noqa: BLE001 - a bug: raised again where it is seen
            self._bug = error

    def _unused(self, step: int) -> str:
        """What makes names of files that are not in the folder of a step yet."""
        names = [path.name for path in folder_of(self._shelf.root, step).iterdir()]
        return next(f"-{n}" for n in count(2) if not any(name.endswith(f"-{n}.bin") for name in names))

    def _retire(self, job: Job) -> None:
        """What can't be removed does no harm: the new checkpoint is safe."""
        try:
            _remove_others(folder_of(self._shelf.root, job.moment.step), job)
            self._shelf.retire(self._keep)
        except OSError as error:
            self._say(f"old checkpoints could not be removed: {error.strerror}")

    def _make_folder(self, job: Job) -> None:
        folder = folder_of(self._shelf.root, job.moment.step)
        if not job.again:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        moment("checkpoint: folder made")

    def _write_tables(self, job: Job, parts: Iterable[tuple[str, State]]) -> None:
        """Parts of one table go to one file, in whatever order they come."""
        folder = folder_of(self._shelf.root, job.moment.step)
        files: dict[str, ArrayFile] = {}
        try:
            for table, state in parts:
                if table not in files:
                    job.tables[table] = f"table-{len(files)}{job.again}.bin"
                    files[table] = ArrayFile(folder / job.tables[table])
                files[table].write(arrays_of(state), {"table": table})
            for table, file in files.items():
                job.parts[job.tables[table]] = file.finish()
        finally:
            for file in files.values():
                file.__exit__(None, None, None)

    def _manifest(self, job: Job) -> Manifest:
        told = job.moment
        kind: Literal["full", "delta"] = "full" if job.base is None else "delta"
        return Manifest(
            told.step, kind, job.base, told.run, job.parts, job.tables, told.progress, told.position,
            dense=job.dense,
        )  # fmt: skip

    def _fail(self, job: Job, error: OSError) -> None:
        self.failure, step = error, job.moment.step
        if not job.again:
            shutil.rmtree(folder_of(self._shelf.root, step), ignore_errors=True)
        stands = f"that of step {self._last:,} stands" if self._last is not None else "there is none yet"
        self._say(f"checkpoint of step {step:,} could not be written: {error.strerror}; {stands}")


def _remove_others(folder: Path, job: Job) -> None:
    """Removes what an earlier save of the same step left."""
    for path in folder.iterdir():
        if path.name != NAME and path.name not in job.parts:
            path.unlink()
