"""One process's part of a checkpoint: a file for each table, written by a thread.

Tables in memory are copied first, so workers go on while the thread hashes and writes. Tables with a memory budget are
written as they are, while the worker that saves them holds the lock.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from berth.errors import WireError
from berth.train.checkpoint.arrays import ArrayFile
from berth.train.checkpoint.finite import NotFiniteError, check_rows
from berth.train.fault_points import fault_point
from berth.train.sparse import TableSpec
from berth.train.tables import State, arrays_of


class SavedShard(Protocol):
    """Shards of tables, by number."""

    specs: list[TableSpec]

    def parts(self, number: int, *, changed_only: bool) -> Iterator[State]:
        """Yield a table in parts; it must not change meanwhile."""
        ...


class ShardSave:
    """One save of a shard."""

    def __init__(
        self,
        shard: SavedShard,
        request: Mapping[str, Any],
        done: Callable[[ShardSave], None] = lambda save: None,
    ) -> None:
        """Open the files and copy the tables; raises `OSError` if a file can't be created. The thread calls `done`."""
        try:
            folder, changed_only = Path(request["folder"]), bool(request["changed_only"])
            names = {int(number): Path(str(name)).name for number, name in request["files"].items()}
            self.streamed = bool(request["streamed"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"invalid request to save: {error!r}") from error
        self._files: dict[str, dict[str, Any]] = {}
        self._error: OSError | None = None
        self._not_finite: str | None = None
        self._cancelled = Event()
        with ExitStack() as opened:
            self._work: list[tuple[ArrayFile, TableSpec, Iterable[State]]] = []
            for number, name in names.items():
                states: Iterable[State] = shard.parts(number, changed_only=changed_only)
                file = opened.enter_context(ArrayFile(folder / name))
                self._work.append((file, shard.specs[number], states if self.streamed else list(states)))
            self._opened = opened.pop_all()
        self._done = done
        self._thread = Thread(target=self._write, name="berth-shard-save", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Return whether the files are on disk, their hashes, and the error or the rows that prevented it."""
        done = not self._thread.is_alive()  # read first: an error is set before the thread ends
        error = None if self._error is None else [self._error.errno, self._error.strerror]
        return {"done": done, "files": dict(self._files), "error": error, "not_finite": self._not_finite}

    def cancel(self) -> None:
        """Stop writing; returns when the thread has ended."""
        self._cancelled.set()
        self._thread.join()

    def _write(self) -> None:
        try:
            with self._opened:
                for file, spec, states in self._work:
                    for state in states:
                        if self._cancelled.is_set():
                            raise InterruptedError(os.strerror(4))
                        check_rows(spec.name, state, spec.dim)
                        file.write(arrays_of(state), {"table": spec.name})
                    self._files[file.path.name] = file.finish()
                    fault_point("server: shard written")
        except OSError as error:
            self._error = error if error.errno else OSError(4, "the save was cancelled")
        except NotFiniteError as error:
            self._not_finite = str(error)
        except Exception as error:  # noqa: BLE001 - a bug must not pass for a complete save
            traceback.print_exc()
            self._error = OSError(errno.EIO, f"internal server error: {type(error).__name__}: {error}")
        self._done(self)
