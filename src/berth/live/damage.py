"""Damage to the journal: how it is detected, and what to do about it.

SQLite detects damage to its own structures, not a flipped byte in a record. So each record has a checksum that covers
its number too. Numbers are consecutive, so a missing record is detected as well. Records of older versions have no
checksum and are not verified.
"""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

from berth.errors import InputError

COLUMN = "sum"


def checksum(seq: int, time: float, kind: bytes, job: bytes | None, body: bytes) -> int:
    """Return the checksum of a record."""
    head = f"{seq} {float(time)!r} ".encode()
    return zlib.crc32(b" ".join((head, kind, job or b"", body)))


def checksum_of_ended(job: bytes, facts: bytes) -> int:
    """Return the checksum of the row of an ended job."""
    return zlib.crc32(job + b" " + facts)


def has_checksums(db: sqlite3.Connection, table: str) -> bool:
    """Return whether a table has checksums; those of older versions have none."""
    return COLUMN in (row[1] for row in db.execute(f"PRAGMA table_info({table})"))


def verify(db: sqlite3.Connection, path: Path) -> None:
    """Verify all checksums, and that no record is missing; raise InputError for the first that is wrong."""
    if has_checksums(db, "journal"):
        _verify_records(db, path)
    if has_checksums(db, "over"):
        _verify_ended(db, path)


def _verify_ended(db: sqlite3.Connection, path: Path) -> None:
    rows = db.execute(f"SELECT CAST(job AS BLOB), CAST(facts AS BLOB), {COLUMN} FROM over")
    for job, facts, found in rows:
        if found is not None and found != checksum_of_ended(job, facts):
            name = job.decode(errors="replace")
            raise InputError(
                f"the journal is damaged: the row of the ended job {name} is not what was written"
                " (its checksum differs)",
                where=str(path),
                hint=f"{_aside(path)}, then restore a backup; without one, take the job off the list of ended jobs\n"
                f"  sqlite3 {path.name} \"DELETE FROM over WHERE job = '{name}'\"",
            )


def _verify_records(db: sqlite3.Connection, path: Path) -> None:
    # as bytes: damaged text may not be valid text
    parts = ", ".join(f"CAST({name} AS BLOB)" for name in ("kind", "job", "body"))
    last = None
    for seq, time, *texts, found in db.execute(
        f"SELECT seq, time, {parts}, {COLUMN} FROM journal ORDER BY seq"
    ):
        if last is not None and seq != last + 1:
            raise _wrong(path, last + 1, "is missing", None)
        if found is not None and found != checksum(seq, time, *texts):
            (kept,) = db.execute("SELECT max(seq) FROM snapshots WHERE seq >= ?", (seq,)).fetchone()
            raise _wrong(path, seq, "is not what was written (its checksum differs)", kept)
        last = seq


def _wrong(path: Path, seq: int, why: str, kept: int | None) -> InputError:
    """Return the error of one record; `kept`: a snapshot at this later record does not need it."""
    ways = [
        (
            f"lose all that follows and go on from record {seq - 1}",
            f"DELETE FROM journal WHERE seq >= {seq}; DELETE FROM snapshots WHERE seq >= {seq}; "
            "DELETE FROM over WHERE ended > (SELECT max(time) FROM journal)",
        )
    ]
    if kept is not None:
        accept = f"UPDATE journal SET {COLUMN} = NULL WHERE seq = {seq}"
        ways.insert(0, (f"accept it as it is: the snapshot at record {kept} does not need it", accept))
    choices = "; or ".join(f'{what}\n  sqlite3 {path.name} "{sql}"\n' for what, sql in ways).rstrip()
    return InputError(
        f"the journal is damaged: record {seq} {why}",
        where=str(path),
        hint=f"{_aside(path)}, then restore a backup; without one, {choices}",
    )


def damaged(path: Path, why: object) -> InputError:
    """Return the error of a journal that can't be read."""
    return InputError(
        f"the journal is damaged: {why}",
        where=str(path),
        hint=f"{_aside(path)} (an old -wal beside another journal damages it), then restore a backup; without one, "
        f"save what can be read with\n  sqlite3 aside/{path.name} .recover | sqlite3 {path.name}",
    )


def _aside(path: Path) -> str:
    return f"move {path.name}, {path.name}-wal and {path.name}-shm aside together"
