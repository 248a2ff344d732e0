"""The journal on disk: SQLite with a write-ahead log, synced before a commit returns.

A store has one controller at a time, which holds a lock on a file beside the database.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from berth.errors import BerthError, InputError
from berth.live.damage import COLUMN, checksum, checksum_of_ended, damaged, has_checksums, verify
from berth.live.home import JOURNAL
from berth.live.ids import Ids
from berth.live.job import Job
from berth.live.private import make_private, private_folder, refuse_network_file_system
from berth.live.records import Record, read

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (
    seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, job TEXT, body TEXT NOT NULL, sum INTEGER);
CREATE INDEX IF NOT EXISTS journal_job ON journal (job, seq) WHERE job IS NOT NULL;
CREATE INDEX IF NOT EXISTS journal_opened ON journal (seq, time) WHERE kind = 'opened';
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, code TEXT NOT NULL, state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS over (
    job TEXT PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL, state TEXT NOT NULL, submitted REAL NOT NULL,
    ended REAL NOT NULL, facts TEXT NOT NULL, sum INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS over_ended ON over (ended);
CREATE TABLE IF NOT EXISTS steps (
    time REAL NOT NULL, key TEXT NOT NULL, job TEXT NOT NULL, tier INTEGER NOT NULL, count INTEGER NOT NULL,
    seconds REAL NOT NULL);
"""
_VERSION = "1"
_SNAPSHOTS = 2  # kept
_INHERITED_LOCK_S = 10.0
_ADOPTING = "adopting"  # a fact, until the attempts of the original are recorded as lost


class StoreError(BerthError):
    """A write failed; nothing of it was written."""


class Store:
    """A state folder with its journal."""

    def __init__(self, folder: Path, *, adopt: bool = False) -> None:
        self.folder = folder
        private_folder(folder)
        refuse_network_file_system(folder)
        with ExitStack() as undo:
            self._lock = _locked(folder / "controller.lock")
            undo.callback(os.close, self._lock)
            self._writing = threading.Lock()  # a connection has one transaction at a time
            self._open(folder / JOURNAL)
            undo.callback(self._db.close)
            self._check_home(adopt=adopt)
            undo.pop_all()
        self._reader = connect(folder / JOURNAL, read_only=True)  # sees only what was committed
        self.ids = Ids()
        self.seq = self._db.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0]

    def _open(self, path: Path) -> None:
        """Open the journal; refuse one that is damaged or of another version."""
        make_private(path)  # SQLite gives its log and its index the mode of the database
        try:
            self._db = connect(path)
            (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise damaged(path, found)
            with self._db:
                self._db.executescript(_SCHEMA)
                for table in ("journal", "over"):
                    if not has_checksums(self._db, table):
                        self._db.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN} INTEGER")
            verify(self._db, path)
            self.name = self.fact("name", secrets.token_hex(3))
            version = self.fact("version", _VERSION)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # a full disk, a lock
                raise StoreError(f"{path}: {error}") from None
            raise damaged(path, error) from None
        if version != _VERSION:
            raise InputError(f"{path}: the journal has version {version}, this berth writes {_VERSION}")

    def _check_home(self, *, adopt: bool) -> None:
        """Refuse the copy of a state folder, whose original may be in use; `adopt` makes it a store of its own."""
        here = home_of(self.folder)
        home = self.fact("home", here)
        if adopt and home != here:
            self.name = secrets.token_hex(3)
            facts = [("name", self.name), ("home", here), (_ADOPTING, "yes")]
            with self._db:
                self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)
                self._db.execute("DELETE FROM facts WHERE name = 'work'")
        elif home != here:
            raise InputError(
                f"belongs to another place: it was created at {home.partition(' ')[2]}"
                + (" on another host" if home.partition(" ")[0] != here.partition(" ")[0] else ""),
                where=str(self.folder),
                hint="start the controller there; or, if that one is gone for good, adopt its jobs with --adopt: "
                "those that ran are queued again",
            )
        self.adopted = self.known_fact(_ADOPTING) is not None

    def keep_ids_in(self, work: Path) -> None:
        """Keep the last id in the work folder, which a restored backup does not change."""
        self.ids = Ids(work)

    def fact(self, name: str, otherwise: str) -> str:
        """Return a fact of the store; set it if it is not set."""
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, otherwise))
        return self.known_fact(name) or otherwise

    def known_fact(self, name: str) -> str | None:
        """Return a fact of the store; None if it is not set."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_fact(self, name: str, value: str) -> None:
        """Change a fact of the store."""
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def commit(
        self, records: Sequence[Record], ended: Iterable[Job] = (), *, ends_adoption: bool = False
    ) -> None:
        """Write all records or none; they are on disk when this returns.

        `ends_adoption`: the records have the ends of the original's attempts, so the adoption is complete.
        """
        rows = [_row(self.seq + 1 + at, record) for at, record in enumerate(records)]
        try:
            with self._writing, self._db:
                self._db.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", rows)
                # a restored backup may have left some
                self._db.executemany(
                    "INSERT OR REPLACE INTO over VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(_ended_row, ended)
                )
                if ends_adoption:
                    self._db.execute("DELETE FROM facts WHERE name = ?", (_ADOPTING,))
        except sqlite3.Error as error:
            raise StoreError(f"the journal can't be written: {error}") from None
        self.seq += len(rows)
        self.adopted = self.adopted and not ends_adoption

    def snapshot(self, code: str, state: bytes) -> None:
        """Save the state as of the last record."""
        try:
            with self._writing, self._db:
                self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (self.seq, code, state))
                self._db.execute(
                    "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                    (_SNAPSHOTS,),
                )
        except sqlite3.Error as error:
            raise StoreError(f"the state can't be written: {error}") from None

    def snapshots(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield snapshots with their record and the code that wrote them, the newest first."""
        yield from self._reader.execute("SELECT seq, code, state FROM snapshots ORDER BY seq DESC")

    def records(self, after: int = 0) -> Iterator[Record]:
        """Yield the records after a number."""
        return records_of(self._reader, after)

    def job_records(self, job: str) -> list[tuple[int, Record]]:
        """Return the records of one job with their numbers."""
        query = "SELECT seq, time, kind, job, body FROM journal WHERE job = ? ORDER BY seq"
        return [(row[0], read(*row[1:])) for row in self._reader.execute(query, (job,))]

    def tokens_of(self, job: str) -> list[str]:
        """Return the tokens of the attempts of a job, in order."""
        return [one.body["token"] for _, one in self.job_records(job) if one.kind in ("start", "move")]

    def opened(self) -> list[tuple[int, float]]:
        """Return the numbers and times of the starts of a controller, in order."""
        return list(self._reader.execute("SELECT seq, time FROM journal WHERE kind = 'opened' ORDER BY seq"))

    def record(self, seq: int) -> Record:
        """Return one record."""
        query = "SELECT time, kind, job, body FROM journal WHERE seq = ?"
        return read(*self._reader.execute(query, (seq,)).fetchone())

    def ended_job(self, job: str) -> dict[str, Any] | None:
        """Return a job that has ended; None if there is none of this id."""
        row = self._reader.execute("SELECT facts FROM over WHERE job = ?", (job,)).fetchone()
        return None if row is None else json.loads(row[0])

    def recent(self, count: int, state: str | None = None) -> list[dict[str, Any]]:
        """Return ended jobs, the last first."""
        where, values = ("WHERE state = ?", [state]) if state else ("", [])
        query = f"SELECT facts FROM over {where} ORDER BY ended DESC LIMIT ?"
        return [json.loads(row[0]) for row in self._reader.execute(query, [*values, count])]

    def ids_with(self, prefix: str, limit: int = 5) -> list[str]:
        """Return ids of ended jobs with this prefix."""
        query = "SELECT job FROM over WHERE job >= ? AND job < ? LIMIT ?"
        return [row[0] for row in self._reader.execute(query, (prefix, prefix + "\U0010ffff", limit))]

    def note_steps(self, rows: Sequence[tuple[float, str, str, int, int, float]]) -> None:
        """Store reported step times: (time, key, job, tier, steps, seconds per step)."""
        try:
            with self._writing, self._db:
                self._db.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StoreError(f"step times can't be written: {error}") from None

    def steps_of(self, job: str) -> list[tuple[float, int, int, float]]:
        """Return (time, tier, steps, seconds per step) of one job."""
        query = "SELECT time, tier, count, seconds FROM steps WHERE job = ? ORDER BY rowid"
        return list(self._reader.execute(query, (job,)))

    def close(self) -> None:
        """Release the store for another controller; a second call does nothing."""
        if self._lock < 0:
            return
        self.ids.close()
        self._reader.close()
        self._db.close()
        os.close(self._lock)
        self._lock = -1


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the database, with every commit synced to disk."""
    where = f"file:{path}?mode=ro" if read_only else str(path)
    db = sqlite3.connect(where, uri=read_only, timeout=10.0, check_same_thread=False)
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    return db


def records_of(db: sqlite3.Connection, after: int = 0) -> Iterator[Record]:
    """Yield the records after a number, in order."""
    query = "SELECT time, kind, job, body FROM journal WHERE seq > ? ORDER BY seq"
    try:
        for row in db.execute(query, (after,)):
            yield read(*row)
    except (ValueError, AttributeError, sqlite3.DatabaseError) as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise
        (path,) = [row[2] for row in db.execute("PRAGMA database_list") if row[1] == "main"]
        raise damaged(Path(path), error) from None


def home_of(folder: Path) -> str:
    """Return what a store is bound to: the host, by its machine id or its name, and the folder's path."""
    try:
        host = Path("/etc/machine-id").read_text().strip()
    except OSError:
        host = ""
    return f"{host or socket.gethostname()} {folder.resolve()}"


def _row(seq: int, record: Record) -> tuple[Any, ...]:
    time, kind, job, line = record.time, record.kind, record.job, record.line()
    encoded = None if job is None else job.encode()
    return seq, time, kind, job, line, checksum(seq, time, kind.encode(), encoded, line.encode())


def _ended_row(job: Job) -> tuple[Any, ...]:
    facts = json.dumps(job.to_dict(), separators=(",", ":"))
    found = checksum_of_ended(job.id.encode(), facts.encode())
    return job.id, job.spec.name, job.user, job.state, job.submitted, job.ended, facts, found


def _locked(path: Path) -> int:
    """Take the lock, which is held until the process ends.

    A process that a controller was just starting when it was killed may hold it for a moment longer.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _INHERITED_LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            other = os.pread(lock, 64, 0).decode(errors="replace").strip() or "unknown"
            if time.monotonic() < deadline and other.isdigit() and not Path("/proc", other).exists():
                time.sleep(0.05)
                continue
            os.close(lock)
            raise InputError(
                f"{path.parent}: another controller (process {other}) uses this store",
                hint="use it, or stop it first",
            ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock
