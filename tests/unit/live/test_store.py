"""The store: damage is found at start, and a copy is not the original."""

import os
import random
import re
import shutil
import sqlite3
from contextlib import closing

import pytest
import zstandard

from berth.errors import InputError
from berth.live.records import VERSION, Record
from berth.live.recover import recover, replay_journal
from berth.live.snapshot import same
from berth.live.store import Store


@pytest.fixture
def folder(tmp_path):
    """A store with enough records to fill many pages."""
    store = Store(tmp_path / "state")
    store.commit(
        [Record(float(n), "ready", f"j{n}", {"number": n, "text": "x" * 200}) for n in range(1, 2_001)]
    )
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


def test_a_file_that_is_not_a_database_is_refused_in_the_same_words(folder):
    (folder / "journal.sqlite").write_bytes(b"nothing of the kind" * 1000)
    with pytest.raises(InputError, match="the journal is damaged: file is not a database"):
        Store(folder)


def flip(path, record):
    """Change a letter in the body of a record, in the file; SQLite finds nothing wrong with that."""
    data = bytearray(path.read_bytes())
    at = data.index(b'"text":"' + b"x" * 200, data.index(f'{{"v":{VERSION},"number":{record},'.encode()))
    data[at + 10] ^= 1
    path.write_bytes(data)


def sql(path, text):
    db = sqlite3.connect(path)
    db.executescript(text)
    db.close()


def offered(error):
    """The statements that a message offers, in its order."""
    return re.findall(r'sqlite3 journal\.sqlite "([^"]+)"', str(error.value))


def test_a_flipped_byte_in_a_record_is_refused_with_its_number(folder):
    path = folder / "journal.sqlite"
    flip(path, 1234)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for use in (Store, lambda folder: replay_journal(folder / "journal.sqlite")):
        with pytest.raises(
            InputError, match="the journal is damaged: record 1234 is not what was written"
        ) as error:
            use(folder)
        assert "restore a backup" in str(error.value)
        assert str(path) in str(error.value)
        assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ("UPDATE journal SET kind = 'opened' WHERE seq = 7", "record 7 is not"),
        ("UPDATE journal SET job = NULL WHERE seq = 7", "record 7 is not"),
        ("UPDATE journal SET time = time + 1e-6 WHERE seq = 7", "record 7 is not"),
        ("UPDATE journal SET sum = sum + 1 WHERE seq = 7", "record 7 is not"),
        ("UPDATE journal SET body = CAST(x'ff' AS TEXT) WHERE seq = 7", "record 7 is not"),
        ("DELETE FROM journal WHERE seq = 7", "record 7 is missing"),
    ],
)
def test_any_change_of_a_record_is_detected(folder, change, reported):
    sql(folder / "journal.sqlite", change)
    with pytest.raises(InputError, match=reported):
        Store(folder)


def test_a_change_in_the_row_of_an_ended_job_is_refused_and_can_be_taken_off_the_list(crank):
    live = crank()
    jobs = [live.submit(gpus=1, seconds=5) for _ in range(2)]
    live.step(60)
    live.controller.close()
    path = live.folder / "journal.sqlite"
    sql(path, f"UPDATE over SET facts = 'x' || substr(facts, 2) WHERE job = '{jobs[0]}'")
    for use in (Store, lambda folder: replay_journal(folder / "journal.sqlite")):
        with pytest.raises(
            InputError, match=f"the row of the ended job {jobs[0]} is not what was written"
        ) as error:
            use(live.folder)
    [statement] = offered(error)
    sql(path, statement)
    with closing(Store(live.folder)) as store:
        assert [job["id"] for job in store.recent(10)] == [jobs[1]]


def test_rows_of_ended_jobs_of_an_older_version_have_no_checksum_and_are_read(crank):
    live = crank()
    job = live.submit(gpus=1, seconds=5)
    live.step(60)
    live.controller.close()
    sql(live.folder / "journal.sqlite", "ALTER TABLE over DROP COLUMN sum")
    with closing(Store(live.folder)) as store:
        assert store.ended_job(job)["id"] == job


def decompresses_to(content, data):
    try:
        return zstandard.decompress(data) == content
    except zstandard.ZstdError:
        return False


@pytest.mark.slow
def test_a_damaged_snapshot_is_not_used(crank, caplog):
    live = crank()
    live.submit(gpus=4, seconds=500)
    live.controller.keep_snapshot()
    path = live.folder / "journal.sqlite"
    db = sqlite3.connect(path)
    seq, state = db.execute("SELECT seq, state FROM snapshots ORDER BY seq DESC").fetchone()
    content = zstandard.decompress(state)
    noticed = 0
    for at in range(len(state) // 2, len(state) // 2 + 40):
        changed = state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :]
        db.execute("UPDATE snapshots SET state = ? WHERE seq = ?", (changed, seq))
        db.commit()
        caplog.clear()
        assert same(recover(live.controller.store), live.state)
        if not decompresses_to(content, changed):
            assert f"the snapshot at record {seq} can't be used" in caplog.text
            noticed += 1
    assert noticed > 30  # some bits of a compressed block have no meaning: padding, symbols that do not occur
    db.close()


@pytest.mark.parametrize("way", ["accept", "go back"])
def test_a_controller_goes_on_after_what_the_message_says(crank, way):
    live = crank()
    jobs = [live.submit(gpus=16, seconds=100) for _ in range(3)]
    live.step(200, times=6)
    live.controller.keep_snapshot()
    live.controller.store.close()
    path = live.folder / "journal.sqlite"
    db = sqlite3.connect(path)
    (seq,) = db.execute("SELECT max(seq) FROM journal WHERE kind = 'exited'").fetchone()
    db.close()
    sql(path, f"UPDATE journal SET time = time + 1 WHERE seq = {seq}")
    with pytest.raises(InputError, match=f"record {seq} is not what was written") as error:
        live.open()
    accept, back = offered(error)
    sql(path, accept if way == "accept" else back)
    live.controller = live.open()
    assert [live.state_of(job) for job in jobs] == ["finished"] * 2 + [
        "finished" if way == "accept" else "placed"
    ]
    live.step(200, times=6)
    assert [live.state_of(job) for job in jobs] == ["finished"] * 3
    live.restart()


def test_a_record_that_is_not_json_is_refused_when_it_is_read(folder):
    sql(folder / "journal.sqlite", "UPDATE journal SET body = 'x{', sum = NULL WHERE seq = 1000")
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
    with pytest.raises(InputError, match="belongs to another place") as error:
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
    assert live.state_of(job) == "placed"
    live.controller.store.close()
    copy = tmp_path / "copy"
    shutil.copytree(live.folder, copy)
    Store(copy, adopt=True).close()  # the back end was down: no controller came up
    live.folder = copy
    live.controller = live.open()
    assert not live.state.attempts
    assert live.state.jobs[job].state == "delayed"  # it waits again
    assert not live.controller.store.adopted
    live.restart()
    assert len([one for one in live.controller.store.records() if one.kind == "exited"]) == 1


def test_the_same_path_on_another_host_is_another_place(folder, monkeypatch):
    monkeypatch.setattr("berth.live.store.home_of", lambda folder: f"other-host {folder.resolve()}")
    with pytest.raises(InputError, match="on another host"):
        Store(folder)


def test_adopting_a_store_in_its_own_place_changes_nothing(folder):
    first = Store(folder)
    first.close()
    second = Store(folder, adopt=True)
    assert (second.name, second.adopted) == (first.name, False)
    second.close()
