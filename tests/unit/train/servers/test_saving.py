"""Servers write their own shards of a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from berth.errors import DivergedError
from berth.train.checkpoint import CheckpointStore, Snapshot, Writer
from berth.train.checkpoint.inspect import load_table
from berth.train.checkpoint.manifest import Manifest, publish
from berth.train.local import LocalStore
from berth.train.servers import Address, RemoteStore, Secret, ServerConfig
from berth.train.servers.process import in_process_servers
from berth.train.servers.shard import Shard
from berth.train.shards.shard_save import ShardSave
from berth.train.sparse import TableSpec
from berth.train.tables import Initialiser, adagrad, arrays_of, join

SPEC = TableSpec("rows", 4, adagrad(), Initialiser())
RUN = {"tables": {"rows": SPEC.to_json()}}


def learn(store, first: int, step: int) -> None:
    keys = np.arange(first, first + 500, dtype=np.uint64)
    store.pull("rows", keys)
    store.push("rows", keys, np.random.default_rng(step).normal(size=(500, 4)).astype(np.float32))
    store.end_step(step)


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, {"weights": np.arange(3.0)}, {}, RUN, {}, {})


def save_now(writer, snapshot: Snapshot, store) -> None:
    writer.save(snapshot, store)
    writer.wait()


def rows(store) -> tuple[bytes, bytes]:
    state = join([part for _, part in store.save()])
    order = np.argsort(state.keys)
    return state.keys[order].tobytes(), state.records[order].tobytes()


@pytest.fixture
def expected():
    """What a table in this process learns."""
    store = LocalStore()
    store.open([SPEC])
    for step, first in enumerate((0, 300, 900)):
        learn(store, first, step)
    return rows(store)


class NoRows(RemoteStore):
    """A store that refuses to pass rows through the worker."""

    def save(self, *, changed_only=False):
        raise AssertionError("rows were collected")


@pytest.mark.parametrize("budget", [None, 12 << 20], ids=["in memory", "with a budget"])
def test_shards_of_three_servers_are_one_table_for_two(tmp_path, budget, expected):
    secret, folder = Secret.random(), CheckpointStore(tmp_path / "run")
    folder.claim()
    config = ServerConfig(memory_bytes=budget, folder=tmp_path / "cold" if budget else None)
    (tmp_path / "cold").mkdir()
    with in_process_servers(3, secret, config) as servers:
        store = NoRows([server.address for server in servers], secret)
        store.open([SPEC])
        writer = Writer(folder, streamed=budget is not None, notify=pytest.fail)
        for step, first in enumerate((0, 300, 900)):  # two full checkpoints, then a delta
            learn(store, first, step)
            writer.save(snapshot(step + 1), store)
        writer.wait()
        store.close()
    chain = folder.chain(3)
    assert [(manifest.step, manifest.kind) for manifest in chain] == [(2, "full"), (3, "delta")]
    assert chain[-1].tables == {"rows": [f"table-0.shard-{shard}-of-3.bin" for shard in range(3)]}
    assert set(chain[-1].parts) == {"dense.bin", *chain[-1].tables["rows"]}
    with in_process_servers(2, secret) as servers:
        store = RemoteStore([server.address for server in servers], secret)
        store.open([SPEC])
        for state in folder.states(chain, "rows"):
            store.load("rows", state)
        assert rows(store) == expected
        store.close()
    alone = load_table(folder, chain, SPEC).save()
    assert (alone.keys.tobytes(), alone.records.tobytes()) == expected
    folder.release()


def test_workers_go_on_while_shards_are_written(tmp_path, monkeypatch):
    """The rows of a checkpoint are those of its step, whatever is pushed before its files are complete."""
    secret, folder = Secret.random(), CheckpointStore(tmp_path / "run")
    folder.claim()
    may_write = threading.Event()

    def slow(state):
        assert may_write.wait(60)
        return arrays_of(state)

    monkeypatch.setattr("berth.train.shards.shard_save.arrays_of", slow)
    with in_process_servers(1, secret) as servers:
        store = RemoteStore([servers[0].address], secret)
        store.open([SPEC])
        learn(store, 0, 0)
        before = rows(store)
        writer = Writer(folder, notify=pytest.fail)
        writer.save(snapshot(1), store)
        learn(store, 0, 1)
        assert rows(store) != before
        assert folder.steps() == []
        may_write.set()
        writer.wait()
        store.close()
    saved = load_table(folder, folder.chain(1), SPEC).save()
    assert (saved.keys.tobytes(), saved.records.tobytes()) == before
    folder.release()


@pytest.mark.parametrize("where", ["local", "streamed", "servers", "collected"])
def test_rows_that_are_not_finite_are_not_saved_and_the_last_good_checkpoint_is_named(
    tmp_path, monkeypatch, where
):
    secret, folder = Secret.random(), CheckpointStore(tmp_path / "run")
    folder.claim()
    if where == "collected":
        monkeypatch.setattr(RemoteStore, "unwritable_by", lambda store, folder: "no common disk")
    with in_process_servers(2, secret) as servers:
        is_local = where in ("local", "streamed")
        store = LocalStore() if is_local else RemoteStore([server.address for server in servers], secret)
        store.open([SPEC])
        learn(store, 0, 0)
        writer = Writer(folder, streamed=where == "streamed")
        writer.save(snapshot(1), store)
        writer.wait()
        saved = (folder.root / "step-000000000001" / "manifest.json").read_bytes()
        store.pull("rows", np.array([7], np.uint64))
        store.push("rows", np.array([7], np.uint64), np.full((1, 4), np.nan, np.float32))
        store.end_step(1)
        what = r"rows of table rows are not finite, .* key 7, after step 2"
        with pytest.raises(DivergedError, match=what) as error:
            save_now(writer, snapshot(2), store)
        assert "the last good checkpoint is that of step 1; start again with lower" in error.value.hint
        writer.wait()  # it is raised once, so that all can be closed
        store.close()
    assert folder.steps() == [1]
    assert (folder.root / "step-000000000001" / "manifest.json").read_bytes() == saved
    assert [path.name for path in folder.root.glob("step-*")] == ["step-000000000001"]
    folder.release()


def test_a_full_disk_costs_the_checkpoint_not_the_run(tmp_path):
    secret, folder, said = Secret.random(), CheckpointStore(tmp_path / "run"), []
    folder.claim()
    with in_process_servers(2, secret) as servers:
        store = RemoteStore([server.address for server in servers], secret)
        store.open([SPEC])
        learn(store, 0, 0)
        writer = Writer(folder, notify=said.append)
        writer.save(snapshot(1), store)
        writer.wait()
        (folder.root / "step-000000000002").touch()  # a file where the folder should be
        learn(store, 0, 1)
        writer.save(snapshot(2), store)
        writer.wait()
        assert len(said) == 1
        assert said[0].startswith("checkpoint of step 2 could not be written: ")
        assert said[0].endswith("; the latest is that of step 1")
        writer.save(snapshot(3), store)
        writer.wait()
        assert folder.chain(3)[0].kind == "full"
        store.close()
    folder.release()


def test_a_shard_that_fails_for_any_reason_is_not_published(tmp_path, monkeypatch, capfd):
    secret, folder, said = Secret.random(), CheckpointStore(tmp_path / "run"), []
    folder.claim()

    def failing(state):
        raise ValueError("a bug")

    with in_process_servers(1, secret) as servers:
        store = RemoteStore([servers[0].address], secret)
        store.open([SPEC])
        learn(store, 0, 0)
        writer = Writer(folder, notify=said.append)
        with monkeypatch.context() as patch:
            patch.setattr("berth.train.shards.shard_save.arrays_of", failing)
            writer.save(snapshot(1), store)
            writer.wait()
        assert folder.steps() == []
        assert "could not be written: internal server error: ValueError: a bug" in said[0]
        writer.save(snapshot(2), store)
        writer.wait()
        assert folder.steps() == [2]
        store.close()
    assert "ValueError: a bug" in capfd.readouterr().err
    folder.release()


def test_the_status_of_a_save_that_just_failed_has_its_error(tmp_path):
    """The thread fails between the two reads of a status."""
    shard = Shard()
    shard.open([SPEC])
    request = {"folder": str(tmp_path), "files": {"0": "rows.bin"}, "changed_only": False, "streamed": False}
    save = ShardSave(shard, request)
    save.cancel()

    class FailsWhenAsked:
        def is_alive(self):
            save._error = OSError(28, "No space left on device")
            return False

    save._thread = FailsWhenAsked()
    assert save.status()["error"] == [28, "No space left on device"]


class Forgetful:
    """A store that names a file which no server wrote."""

    def unwritable_by(self, folder):
        return None

    def start_save(self, folder, suffix, *, changed_only, streamed):
        return {"rows": ["table-0.shard-0-of-1.bin"]}

    def finish_save(self):
        return {}


def test_a_checkpoint_without_a_file_of_its_tables_is_neither_published_nor_used(tmp_path):
    folder, said = CheckpointStore(tmp_path / "run"), []
    folder.claim()
    writer = Writer(folder, notify=said.append)
    writer.save(snapshot(1), Forgetful())
    writer.wait()
    assert folder.steps() == []
    assert "could not be written: table-0.shard-0-of-1.bin was not written" in said[0]
    (folder.root / "step-000000000002").mkdir()
    manifest = Manifest(2, "full", None, RUN, {}, {"rows": ["table-0.bin"]}, {}, {})
    publish(folder.root / "step-000000000002", manifest)
    assert folder.newest(said.append) is None
    assert said[1:] == ["checkpoint of step 2 can't be used: table-0.bin is missing (it was not written)"]
    folder.release()


@pytest.mark.slow
def test_a_server_without_the_disk_of_rank_0_leaves_the_rows_to_it(tmp_path, expected):
    """Its folder of the same name is another one, as on a host without a shared disk."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    secret, folder, said = Secret.random(), CheckpointStore(tmp_path / "run"), []
    folder.claim()
    ready = tmp_path / "ready"
    inside = f'mount -t tmpfs none "{folder.root}" && exec "{sys.executable}" -m berth.train.servers --ready "{ready}"'
    server = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", inside],
        stdin=subprocess.PIPE,
        env={**os.environ, **secret.environment()},
    )
    try:
        deadline = time.monotonic() + 120
        while not ready.exists():
            if server.poll() is not None:
                pytest.skip("needs permission to make mount namespaces")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        store = RemoteStore([Address.from_json(ready.read_text())], secret)
        store.open([SPEC])
        writer = Writer(folder, notify=said.append)
        for step, first in enumerate((0, 300, 900)):
            learn(store, first, step)
            writer.save(snapshot(step + 1), store)
        writer.wait()
        store.close()
    finally:
        server.stdin.close()
        server.wait(60)
    assert len(said) == 1
    assert "can't write there: No such file or directory; rank 0 collects the rows" in said[0]
    saved = load_table(folder, folder.chain(3), SPEC).save()
    assert (saved.keys.tobytes(), saved.records.tobytes()) == expected
    assert json.loads(Path(folder.root, "step-000000000003", "manifest.json").read_text())["manifest"][
        "tables"
    ] == {"rows": ["table-0.bin"]}
    folder.release()
