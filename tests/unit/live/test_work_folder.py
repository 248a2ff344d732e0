"""The folder of attempts: one store's alone, never inside a state folder, and remembered."""

import shutil
import stat

import pytest

from berth.errors import InputError
from berth.live.folder import tokens_in
from berth.live.server import work_folder
from berth.live.store import Store


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "state")
    yield made
    made.close()


def run(work, token):
    (work / "live" / token).mkdir(parents=True)


def test_two_stores_with_the_same_work_do_not_see_each_others_attempts(store, tmp_path):
    shared = tmp_path / "shared"
    first = work_folder(store, shared)
    run(first, f"{store.name}-job.1")
    other = Store(tmp_path / "other")
    assert tokens_in(work_folder(other, shared)) == []
    other.close()
    shutil.copytree(store.folder, tmp_path / "copy")
    adopted = Store(tmp_path / "copy", adopt=True)
    assert tokens_in(work_folder(adopted, shared)) == []
    adopted.close()
    assert tokens_in(work_folder(store, shared)) == [f"{store.name}-job.1"]
    assert first.is_relative_to(shared)
    assert stat.S_IMODE(first.stat().st_mode) == 0o700


def test_the_folder_is_remembered_and_kept_while_attempts_are_in_it(store, tmp_path):
    first = work_folder(store, tmp_path / "one")
    assert work_folder(store, None) == first
    run(first, "a.1")
    with pytest.raises(InputError, match="attempts are under way in"):
        work_folder(store, tmp_path / "two")
    shutil.rmtree(first / "live")
    assert work_folder(store, tmp_path / "two") == work_folder(store, None) == tmp_path / "two" / store.name


def test_the_bare_folder_of_an_older_berth_stays_in_use(store, tmp_path):
    store.set_fact("work", str(tmp_path / "bare"))
    run(tmp_path / "bare", "a.1")
    assert work_folder(store, tmp_path / "bare") == work_folder(store, None) == tmp_path / "bare"


@pytest.mark.parametrize("inside", [".", "work", "a/../b"])
def test_a_folder_inside_the_state_is_refused_and_not_remembered(store, tmp_path, inside):
    with pytest.raises(InputError, match="is in the state folder"):
        work_folder(store, store.folder / inside)
    assert work_folder(store, None) == tmp_path / "state-work" / store.name


@pytest.mark.parametrize("remembered", [False, True])
def test_attempts_of_an_older_berth_inside_the_state_are_left_once_they_have_ended(
    store, tmp_path, remembered
):
    old = store.folder / "attempts"
    run(old, "a.1")
    if remembered:
        store.set_fact("work", str(old))
    assert work_folder(store, None) == old
    (old / "live" / "a.1").rmdir()
    assert work_folder(store, None) == tmp_path / "state-work" / store.name


def test_attempts_inside_the_copy_of_a_state_are_the_originals(store, tmp_path):
    run(store.folder / "attempts", "a.1")
    shutil.copytree(store.folder, tmp_path / "copy")
    adopted = Store(tmp_path / "copy", adopt=True)
    assert work_folder(adopted, None) == tmp_path / "copy-work" / adopted.name
    adopted.close()
