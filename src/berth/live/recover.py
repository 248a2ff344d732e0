"""The state from the journal: the newest usable snapshot, and all records after it; and replays of whole journals."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import zstandard

from berth.errors import InputError
from berth.live import snapshot
from berth.live.damage import verify
from berth.live.decisions import PolicyFailedError, ReplayError, replay_pass
from berth.live.migrate import migrate, pause
from berth.live.records import DECISIONS, Record, upcast
from berth.live.setup import Setup, setup_from_dict, usable
from berth.live.state import ControllerState
from berth.live.store import Store, connect, records_of
from berth.native.cache import fingerprint

_log = logging.getLogger("berth.live")


def recover(store: Store) -> ControllerState | None:
    """Return the state of the last commit; None if nothing was ever committed."""
    try:
        state = _newest(store, trust=True)
    except ReplayError as error:
        _log.warning("%s; the decisions of the journal are applied as recorded", error)
        state = _newest(store, trust=False)
    except PolicyFailedError as fault:
        _log.warning("%s; the decisions of the journal are applied as recorded", fault.what)
        why = fault.why
        state = _newest(store, trust=False, adapt=lambda setup: replace(setup, paused=setup.paused or why))
    if state is not None:
        state.ended = []  # they are in the store
    return state


def _newest(store: Store, *, trust: bool, adapt: Callable[[Setup], Setup] = usable) -> ControllerState | None:
    for seq, code, data in store.snapshots():
        try:
            state = snapshot.load(data, adapt)
        except (ValueError, KeyError, TypeError, EOFError, zstandard.ZstdError) as error:
            _log.warning("the snapshot at record %d can't be used: %s", seq, error)
            continue
        return apply_all(state, store.records(seq), trust=trust, code=code, adapt=adapt)
    return apply_all(None, store.records(), trust=trust, adapt=adapt)


def apply_all(
    state: ControllerState | None,
    records: Iterable[Record],
    *,
    trust: bool,
    any_code: bool = False,
    code: str | None = None,
    adapt: Callable[[Setup], Setup] = usable,
) -> ControllerState | None:
    """Apply records in order. With `trust`, passes that this code wrote (with `any_code`, all) are decided again.

    `code`: the fingerprint that wrote the first records, if they are not the first of the journal. `adapt` returns the
    setup to use for one of the journal: by default, paused if its policy can't be loaded any more.
    """
    same = trust and code in (None, fingerprint())
    for group in group_passes(map(upcast, records)):
        record = group[0]
        if record.kind == "opened":
            same = trust and (any_code or record.body["code"] == fingerprint())
            setup = adapt(setup_from_dict(record.body))
            state = ControllerState(setup) if state is None else migrate(state, setup)
            state.apply(record)
            continue
        assert state is not None, "a journal begins with `opened`"
        if record.kind == "pass":
            replay_pass(state, group, trust=same and state.setup.paused is None)
        elif record.kind == "paused":
            state = pause(state, record.body["why"])
            state.apply(record)
        elif record.kind == "resumed":
            state = migrate(state, adapt(replace(state.setup, paused=None)))
            state.apply(record)
        else:
            state.apply(record)
    return state


def group_passes(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield each pass together with its decisions, and every other record alone."""
    source = iter(records)
    for record in source:
        group = [record]
        if record.kind == "pass":
            group += [next(source) for _ in range(record.body.get("decisions", 0))]
        yield group


def replay_journal(path: Path) -> dict[str, Any]:
    """Replay a journal from its first record and compare every decision; return counts and the first difference."""
    counts: dict[str, Any] = {"records": 0, "passes": 0, "decisions": 0, "differences": 0, "first": None}
    try:
        db = connect(path, read_only=True)
        try:
            verify(db, path)
            records = _counted(records_of(db), counts)
            apply_all(None, records, trust=True, any_code=True, adapt=_needed)
        except ReplayError as error:
            counts["differences"], counts["first"] = 1, str(error)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise InputError(f"{path}: {error}", hint="is it a journal of berth?") from None
    return counts


def _needed(setup: Setup) -> Setup:
    """Return a setup; refuse one whose policy can't be loaded."""
    if setup.paused is not None or (why := usable(setup).paused) is None:
        return setup
    raise InputError(
        f"this journal was written with policy {setup.policy!r}, which can't be loaded: {why}",
        hint="its decisions can be repeated once the policy is there again, as it was",
    )


def _counted(records: Iterator[Record], counts: dict[str, Any]) -> Iterator[Record]:
    for record in records:
        counts["records"] += 1
        counts["passes"] += record.kind == "pass"
        counts["decisions"] += record.kind in DECISIONS
        yield record
