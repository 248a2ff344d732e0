"""The store: damage is found at start, and a copy is not the original."""

import os
import random
import shutil
import sqlite3

import pytest

from berth.errors import InputError
from berth.live.records import Record
from berth.live.store import Store


@pytest.fixture
def folder(tmp_path):
    """A store with enough records to fill many pages."""
    store = Store(tmp_path / "state")
    store.commit([Record(float(n), "ready", f"j{n}", {"text": "x" * 200}) for n in range(2_000)])
    store.close()
    return store.folder


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_journal_is_refused_with_what_to_do(folder, seed):
    path, chance = folder / "journal.sqlite", random.Random(seed)
    with path.open("r+b") as file:
        file.seek(os.path.getsize(path) // 2 - 1500)
        file.write(chance.randbytes(3_000))
    with pytest.raises(InputError, match="the journal is damaged") as error:
        Store(folder)
    assert "restore a backup" in str(error.value)
    assert "journal.sqlite, journal.sqlite-wal and journal.sqlite-shm aside together" in str(error.value)
    assert str(path) in str(error.value)


def test_what_is_no_database_is_refused_in_the_same_words(folder):
    (folder / "journal.sqlite").write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(InputError, match="the journal is damaged: file is not a database"):
        Store(folder)


def test_a_record_that_is_no_json_is_refused_where_it_is_read(folder):
    with sqlite3.connect(folder / "journal.sqlite") as db:
        db.execute("UPDATE journal SET body = 'x{' WHERE seq = 1000")
    db.close()
    store = Store(folder)
    with pytest.raises(InputError, match="the journal is damaged"):
        list(store.records())
    store.close()


def test_a_refused_store_can_be_opened_once_it_is_right(folder):
    good = (folder / "journal.sqlite").read_bytes()
    (folder / "journal.sqlite").write_bytes(good[:5000])
    with pytest.raises(InputError):
        Store(folder)
    (folder / "journal.sqlite").write_bytes(good)  # the lock was let go
    Store(folder).close()


def test_a_copy_is_refused_and_adopted_under_a_name_of_its_own(folder, tmp_path):
    original = Store(folder)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with pytest.raises(InputError, match="is the state of another place") as error:
        Store(copy)
    assert str(folder) in str(error.value)
    assert "--adopt" in str(error.value)
    adopted = Store(copy, adopt=True)
    assert adopted.adopted
    assert adopted.name != original.name
    assert not original.adopted
    original.close()
    adopted.commit([], ends_adoption=True)
    adopted.close()
    again = Store(copy)  # it is at home there now
    assert (again.name, again.adopted) == (adopted.name, False)
    again.close()


def test_an_adoption_that_was_cut_short_is_completed_at_the_next_start(crank, tmp_path):
    live = crank()
    job = live.submit(gpus=4, seconds=10_000)
    live.step(1)
    assert live.state(job) == "placed"
    live.controller.store.close()
    copy = tmp_path / "copy"
    shutil.copytree(live.folder, copy)
    Store(copy, adopt=True).close()  # the back end was down: no controller came up
    live.folder = copy
    live.controller = live.open()
    assert not live.books.attempts
    assert live.books.jobs[job].state == "delayed"  # it waits again
    assert not live.controller.store.adopted
    live.restart()
    assert len([one for one in live.controller.store.records() if one.kind == "exited"]) == 1


def test_the_same_path_on_another_host_is_another_place(folder, monkeypatch):
    monkeypatch.setattr("berth.live.store.home_of", lambda folder: f"other-host {folder.resolve()}")
    with pytest.raises(InputError, match="on another host"):
        Store(folder)


def test_adopting_what_is_at_home_changes_nothing(folder):
    first = Store(folder)
    first.close()
    second = Store(folder, adopt=True)
    assert (second.name, second.adopted) == (first.name, False)
    second.close()
