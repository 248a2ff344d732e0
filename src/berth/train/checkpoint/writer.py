"""Writes checkpoints in a background thread.

At the end of a step the state is copied (or, for tables larger than memory, written directly); a thread does the
rest. Servers that can write to the folder write their own shards, and this process never has their rows. A failed
checkpoint is reported, training continues, and the next checkpoint is a full one. Rows that are not finite end the run.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from numpy.typing import NDArray

from berth.errors import DivergedError
from berth.train.checkpoint.arrays import ArrayFile
from berth.train.checkpoint.finite import NotFiniteError, check_rows
from berth.train.checkpoint.manifest import NAME, Manifest, folder_of, publish, sync_folder
from berth.train.checkpoint.store import CheckpointStore
from berth.train.fault_points import fault_point
from berth.train.sparse import SparseStore
from berth.train.tables import State, arrays_of

Notify = Callable[[str], None]
_BASES = 2  # full checkpoints to keep


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a checkpoint except its tables."""

    step: int
    arrays: Mapping[str, NDArray[Any]]
    meta: Any
    run: dict[str, Any]
    progress: dict[str, Any]
    position: dict[str, Any]


class ShardedStore(Protocol):
    """A store whose servers write their own shards."""

    def unwritable_by(self, folder: Path) -> str | None:
        """Return which server can't write to a folder, and why; None if all can."""
        ...

    def start_save(
        self, folder: Path, suffix: str, *, changed_only: bool, streamed: bool
    ) -> dict[str, list[str]]:
        """Let all servers write their shards; returns the files of each table."""
        ...

    def finish_save(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file."""
        ...


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint being written."""

    snapshot: Snapshot
    base: int | None
    suffix: str = ""  # of file names, if this step was saved before
    states: list[tuple[str, State]] = field(default_factory=list)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    shards: ShardedStore | None = None  # writes the tables
    streamed: bool = False  # the tables are written before the thread starts

    @property
    def dense(self) -> str:
        """Return the file name of the dense part."""
        return f"dense{self.suffix}.bin"


class Writer:
    """Writes checkpoints to a store, one at a time."""

    def __init__(
        self,
        checkpoint_store: CheckpointStore,
        *,
        keep: int = 3,
        full_every: int = 8,
        streamed: bool = False,
        notify: Notify = lambda text: None,
    ) -> None:
        self._checkpoint_store = checkpoint_store
        self._keep = keep
        self._full_every = full_every
        self._streamed = streamed  # tables are larger than memory
        self._notify = notify
        self._thread: threading.Thread | None = None
        self._sharded: bool | None = None  # whether servers write the tables; None: not known yet
        self._last: int | None = None  # step of the newest checkpoint
        self._deltas = 0
        self.protected: int | None = None  # a step that retention keeps
        self.completed: deque[int] = deque()  # steps of complete checkpoints, for the session to report
        self.failure: OSError | None = None
        self._diverged: DivergedError | None = None
        self._must_be_full = False  # the changes since the last checkpoint were not saved
        self._unexpected_error: Exception | None = None

    def resumed(self, chain: list[Manifest]) -> None:
        """Base the next delta on this checkpoint."""
        self._last, self._deltas = chain[-1].step, len(chain) - 1

    @property
    def last(self) -> int | None:
        """Return the step of the newest complete checkpoint."""
        self.wait()
        return self._last

    def folder(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return folder_of(self._checkpoint_store.root, step)

    def save(self, snapshot: Snapshot, store: SparseStore) -> None:
        """Take a snapshot of this step; returns when training can continue.

        Saving a step again replaces it atomically, by renaming its manifest. Full checkpoints are the first two, one in
        `full_every`, the one after a failure, and a step that is saved again.
        """
        self.wait()
        twice = snapshot.step == self._last
        full = (
            twice
            or self._last is None
            or self._must_be_full
            or self._deltas >= self._full_every - 1
            or len({chain[-1] for chain in self._checkpoint_store.chains()}) < _BASES
        )
        pending = PendingCheckpoint(
            snapshot, None if full else self._last, self._unused_suffix(snapshot.step) if twice else ""
        )
        self.failure, self._must_be_full = None, False
        try:
            self._save_tables(pending, store, full=full)
        except OSError as error:
            self._fail(pending, error)
            return
        except NotFiniteError as error:
            self._note_diverged(pending, error)
        self._raise_diverged()
        fault_point("checkpoint: snapshot taken")
        self._thread = threading.Thread(target=self._write, args=(pending,), name="berth-checkpoint")
        self._thread.start()

    def _save_tables(self, pending: PendingCheckpoint, store: SparseStore, *, full: bool) -> None:
        """Write or copy the tables, or let servers write them."""
        sharded = hasattr(store, "start_save")
        if self._servers_write(store):
            self._make_folder(pending)
            pending.shards = cast("ShardedStore", store)
            folder = folder_of(self._checkpoint_store.root, pending.snapshot.step)
            pending.tables = pending.shards.start_save(
                folder, pending.suffix, changed_only=not full, streamed=self._streamed
            )
            return
        parts = store.save(changed_only=not full)
        pending.streamed = self._streamed or sharded
        if pending.streamed:
            self._make_folder(pending)
            self._write_tables(pending, parts)
        else:
            pending.states = list(parts)

    def _servers_write(self, store: SparseStore) -> bool:
        """Return whether the tables are on servers that can write to the folder; found out once."""
        if self._sharded is None:
            root = self._checkpoint_store.root
            sharded = hasattr(store, "start_save")
            reason = cast("ShardedStore", store).unwritable_by(root) if sharded else None
            if reason is not None:
                self._notify(
                    f"{root}: {reason}; rank 0 collects the rows of every checkpoint: use a folder that all hosts share"
                )
            self._sharded = sharded and reason is None
        return self._sharded

    def wait(self) -> None:
        """Wait until the pending checkpoint is on disk or has failed; `DivergedError` if its rows are not finite."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_diverged()
        if self._unexpected_error is not None:
            raise self._unexpected_error

    def check(self) -> None:
        """Raise what `wait` would if the pending checkpoint has ended; does not wait for it."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def _write(self, pending: PendingCheckpoint) -> None:
        step = pending.snapshot.step
        try:
            if pending.shards is not None:
                pending.parts |= pending.shards.finish_save()
            elif not pending.streamed:
                self._make_folder(pending)
                self._write_tables(pending, pending.states)
            _check_complete(pending)
            folder = folder_of(self._checkpoint_store.root, step)
            with ArrayFile(folder / pending.dense) as file:
                file.write(pending.snapshot.arrays, pending.snapshot.meta)
                pending.parts[pending.dense] = file.finish()
            sync_folder(folder)
            fault_point("checkpoint: parts written")
            publish(folder, self._manifest(pending))
            self._last, self._deltas = step, 0 if pending.base is None else self._deltas + 1
            self._prune(pending)
            self.completed.append(step)
        except OSError as error:
            self._fail(pending, error)
        except NotFiniteError as error:
            self._note_diverged(pending, error)
        except Exception as error:  # noqa: BLE001 - a bug: raised again where it is seen
            self._unexpected_error = error

    def _unused_suffix(self, step: int) -> str:
        """Return a suffix for file names that are not in the folder yet."""
        names = [path.name for path in folder_of(self._checkpoint_store.root, step).iterdir()]
        return next(f"-{n}" for n in count(2) if not any(name.endswith(f"-{n}.bin") for name in names))

    def _prune(self, pending: PendingCheckpoint) -> None:
        """Delete old checkpoints; a failure is only reported, since the new one is complete."""
        try:
            _remove_others(folder_of(self._checkpoint_store.root, pending.snapshot.step), pending)
            self._checkpoint_store.prune(self._keep, self.protected)
        except OSError as error:
            self._notify(f"old checkpoints could not be removed: {error.strerror}")

    def _make_folder(self, pending: PendingCheckpoint) -> None:
        folder = folder_of(self._checkpoint_store.root, pending.snapshot.step)
        if not pending.suffix:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        fault_point("checkpoint: folder made")

    def _write_tables(self, pending: PendingCheckpoint, parts: Iterable[tuple[str, State]]) -> None:
        """Write the parts of each table to one file, in any order."""
        folder = folder_of(self._checkpoint_store.root, pending.snapshot.step)
        files: dict[str, ArrayFile] = {}
        try:
            for table, state in parts:
                if table not in files:
                    pending.tables[table] = [f"table-{len(files)}{pending.suffix}.bin"]
                    files[table] = ArrayFile(folder / pending.tables[table][0])
                check_rows(table, state, pending.snapshot.run["tables"][table]["dim"])
                files[table].write(arrays_of(state), {"table": table})
            for table, file in files.items():
                pending.parts[pending.tables[table][0]] = file.finish()
        finally:
            for file in files.values():
                file.__exit__(None, None, None)

    def _manifest(self, pending: PendingCheckpoint) -> Manifest:
        snapshot = pending.snapshot
        kind: Literal["full", "delta"] = "full" if pending.base is None else "delta"
        return Manifest(
            snapshot.step, kind, pending.base, snapshot.run, pending.parts, pending.tables, snapshot.progress,
            snapshot.position,
            dense=pending.dense,
        )  # fmt: skip

    def _fail(self, pending: PendingCheckpoint, error: OSError) -> None:
        self.failure, step = error, pending.snapshot.step
        self._discard(pending)
        previous = (
            f"the latest is that of step {self._last:,}"
            if self._last is not None
            else "there is no earlier one"
        )
        self._notify(f"checkpoint of step {step:,} could not be written: {error.strerror}; {previous}")

    def _raise_diverged(self) -> None:
        """Raise the error once, outside of handlers: a generator of rows in a traceback would keep tables locked."""
        diverged, self._diverged = self._diverged, None
        if diverged is not None:
            raise diverged

    def _note_diverged(self, pending: PendingCheckpoint, error: NotFiniteError) -> None:
        """Let the next call of `wait` or `check` end the run."""
        self._discard(pending)
        self._diverged = DivergedError(
            f"{error}, after step {pending.snapshot.step:,}",
            where=str(self._checkpoint_store.root),
            hint=f"{last_good(self._last)}; start again with lower learning rates",
        )

    def _discard(self, pending: PendingCheckpoint) -> None:
        self._must_be_full = True
        if not pending.suffix:
            folder = folder_of(self._checkpoint_store.root, pending.snapshot.step)
            shutil.rmtree(folder, ignore_errors=True)


def last_good(step: int | None) -> str:
    """Return what is left after an error."""
    return "there is no checkpoint" if step is None else f"the last good checkpoint is that of step {step:,}"


def _check_complete(pending: PendingCheckpoint) -> None:
    """Raise `OSError` if a file of a table was not written."""
    files = (file for files in pending.tables.values() for file in files)
    missing = next((file for file in files if file not in pending.parts), None)
    if missing is not None:
        raise OSError(errno.EIO, f"{missing} was not written")


def _remove_others(folder: Path, pending: PendingCheckpoint) -> None:
    """Remove the files of an earlier save of the same step."""
    for path in folder.iterdir():
        if path.name != NAME and path.name not in pending.parts:
            path.unlink()
