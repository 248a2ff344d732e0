"""Journals of earlier versions: every later one must open them, and come to the same state."""

import json
import math
import shutil
import sqlite3
from pathlib import Path

import pytest

from berth.clock import ManualClock
from berth.errors import InputError
from berth.live import recover as recovery
from berth.live.controller import Controller
from berth.live.profiles import numbers_of
from berth.live.recover import apply_all, recover, replay_journal
from berth.live.setup import Setup
from berth.live.snapshot import facts_of, same
from berth.live.spec import spec_from_dict
from berth.live.store import Store
from berth.testing.live_audit import audit
from berth.testing.memory import MemoryBackend

HERE = Path(__file__).parents[2] / "data" / "journals"
VERSIONS = sorted(path.stem for path in HERE.glob("*.sqlite"))
KINDS = {
    "opened", "submitted", "cancelled", "prioritised", "machine", "external", "launch", "started", "exited",
    "ready", "learned", "pass", "start", "evict", "move",
}  # fmt: skip


@pytest.fixture(params=VERSIONS)
def stored(request, tmp_path):
    """A state folder as that version left it, and the state that it had."""
    folder = tmp_path / "state"
    folder.mkdir()
    shutil.copy(HERE / f"{request.param}.sqlite", folder / "journal.sqlite")
    return folder, json.loads((HERE / f"{request.param}.json").read_text())


def alike(one, other):
    """Equal but for the last digits of numbers, which differ between CPUs."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-9) or one == other
    return one == other


def comparable(facts):
    """What every version keeps; the code and the next look at the clock are not part of it."""
    facts = json.loads(json.dumps(facts))
    facts["setup"].pop("code")
    facts.pop("wake")
    for job in facts["jobs"]:
        job.pop("profile", None)
        job["spec"] = spec_from_dict(job["spec"]).to_dict()  # however a length of time was written then
    return facts


def known_then(facts, stored):
    """Today's facts without those that came later, also of jobs and attempts."""
    facts = {name: facts[name] for name in stored}
    for kind in ("jobs", "attempts"):
        fields = set(stored[kind][0])
        facts[kind] = [{name: one[name] for name in fields} for one in facts[kind]]
    return facts


def test_there_is_a_journal_of_every_version():
    assert VERSIONS == ["v1", "v2"]


def test_a_stored_journal_has_every_kind_of_record(stored):
    with sqlite3.connect(stored[0] / "journal.sqlite") as db:
        assert ("foreign",) in db.execute("SELECT DISTINCT kind FROM journal")  # as `external` was called
    db.close()
    store = Store(stored[0])
    assert {record.kind for record in store.records()} == KINDS
    store.close()


def test_a_stored_journal_leads_to_the_state_it_led_to_then(stored):
    folder, facts = stored
    store = Store(folder)
    state = apply_all(None, store.records(), trust=False)
    store.close()
    assert not audit(state)
    assert alike(known_then(comparable(facts_of(state)), comparable(facts)), comparable(facts))


@pytest.mark.slow
def test_a_controller_starts_on_a_stored_journal_and_goes_on(stored, caplog):
    folder, facts = stored
    store = Store(folder)
    state = recover(store)
    clock = ManualClock(state.now)
    setup = Setup(state.setup.cluster, policy=state.setup.policy, store=store.name)
    controller = Controller(store, MemoryBackend(setup.cluster, clock), setup, clock)
    for _ in range(5):
        clock.advance(30)
        controller.step()
        assert not audit(controller.state)
    assert {job["id"] for job in facts["jobs"]} >= set(controller.state.jobs)
    profile = controller.state.jobs["profiled"].profile
    if "profile" in facts["jobs"][0]:
        assert profile["compute_s"] == {"V100": 0.12}
    else:  # it names a file, which is not read
        assert profile == numbers_of(None)
        assert "job profiled: its profile '/tmp/" in caplog.text
    controller.close()
    assert replay_journal(folder / "journal.sqlite")["records"] > 100


def test_a_record_of_a_newer_version_is_refused_by_its_number(crank):
    live = crank()
    live.submit()
    with sqlite3.connect(live.folder / "journal.sqlite") as db:
        db.execute("""UPDATE journal SET body = json_set(body, '$.v', 99) WHERE kind = 'submitted'""")
    db.close()
    with pytest.raises(InputError, match="records of version 99"):
        recover(live.controller.store)


def test_a_snapshot_is_used_after_a_change_of_the_code(crank, monkeypatch):
    live = crank()
    job = live.submit(gpus=8, seconds=500)
    live.step(5, times=2)
    live.controller.keep_snapshot()
    later = live.submit(gpus=16, seconds=500)
    live.step(5)
    with sqlite3.connect(live.folder / "journal.sqlite") as db:  # so that nothing else can be read
        kept = db.execute("SELECT max(seq) FROM snapshots").fetchone()[0]
        db.execute("DELETE FROM journal WHERE seq <= ?", (kept,))
    db.close()
    monkeypatch.setattr(recovery, "fingerprint", lambda: "another code")
    state = recover(live.controller.store)
    assert set(state.jobs) == {job, later}
    assert state.jobs[job].token == live.state.jobs[job].token
    assert not audit(state)


def test_a_snapshot_of_another_form_is_not_used(crank, monkeypatch, caplog):
    live = crank()
    live.submit(gpus=8, seconds=500)
    live.step(5, times=2)
    live.controller.keep_snapshot()
    monkeypatch.setattr("berth.live.snapshot._FORM", -1)
    state = recover(live.controller.store)
    assert "can't be used: it has another form" in caplog.text
    assert same(state, live.state)
