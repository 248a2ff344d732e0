"""From the journal back to the books: the newest snapshot that can be read, and every record behind it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import zstandard

from berth.live import snapshot
from berth.live.books import Books
from berth.live.passing import ReplayError, follow
from berth.live.rebase import rebase
from berth.live.records import Record, upcast
from berth.live.setup import setup_of
from berth.live.store import Store
from berth.native.cache import fingerprint

_log = logging.getLogger("berth.live")


def recover(store: Store) -> Books | None:
    """The books as they stood at the last commit; None: nothing was ever committed."""
    try:
        books = _newest(store, trust=True)
    except ReplayError as error:
        _log.warning("%s; the journal's decisions are taken as they stand", error)
        books = _newest(store, trust=False)
    if books is not None:
        books.over = []  # the store has them
    return books


def _newest(store: Store, *, trust: bool) -> Books | None:
    for seq, code, state in store.snapshots():
        try:
            books = snapshot.load(state)
        except (ValueError, KeyError, TypeError, EOFError, zstandard.ZstdError) as error:
            _log.warning("the state kept at record %d can't be used: %s", seq, error)
            continue
        return fold_all(books, store.records(seq), trust=trust, code=code)
    return fold_all(None, store.records(), trust=trust)


def fold_all(
    books: Books | None,
    records: Iterable[Record],
    *,
    trust: bool,
    whoever: bool = False,
    code: str | None = None,
) -> Books | None:
    """Folds records in order. Passes are decided again where this code (or `whoever`) wrote them, if `trust`.

    `code`: what wrote the first records, if they are not the journal's first.
    """
    same = trust and code in (None, fingerprint())
    for group in passes_whole(map(upcast, records)):
        record = group[0]
        if record.kind == "opened":
            same = trust and (whoever or record.body["code"] == fingerprint())
            setup = setup_of(record.body)
            books = Books(setup) if books is None else rebase(books, setup)
            books.fold(record)
            continue
        assert books is not None, "a journal begins with `opened`"
        if record.kind == "pass":
            follow(books, group, trust=same)
        else:
            books.fold(record)
    return books


def passes_whole(records: Iterable[Record]) -> Iterator[list[Record]]:
    """A pass together with its decisions; every other record alone."""
    source = iter(records)
    for record in source:
        group = [record]
        if record.kind == "pass":
            group += [next(source) for _ in range(record.body.get("decisions", 0))]
        yield group
