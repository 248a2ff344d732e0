"""A journal played again: the same inputs at the same times must lead to the same decisions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from berth.errors import InputError
from berth.live.damage import verify
from berth.live.passing import ReplayError
from berth.live.records import DECISIONS, Record
from berth.live.recover import fold_all
from berth.live.store import connect, records_of


def replay_journal(path: Path) -> dict[str, Any]:
    """Folds a journal from its first record; every pass is decided again, whoever wrote it."""
    told: dict[str, Any] = {"records": 0, "passes": 0, "decisions": 0, "differences": 0, "first": None}
    try:
        db = connect(path, read_only=True)
        try:
            verify(db, path)
            fold_all(None, _counted(records_of(db), told), trust=True, whoever=True)
        except ReplayError as error:
            told["differences"], told["first"] = 1, str(error)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise InputError(f"{path}: {error}", hint="is it a journal of berth?") from None
    return told


def _counted(records: Iterator[Record], told: dict[str, Any]) -> Iterator[Record]:
    for record in records:
        told["records"] += 1
        told["passes"] += record.kind == "pass"
        told["decisions"] += record.kind in DECISIONS
        yield record
