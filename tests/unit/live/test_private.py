"""State folders: other users can't read them, whatever the umask, and the disk must suit a journal."""

import os
import stat

import pytest

from berth.errors import InputError
from berth.live.api.tokens import Tokens
from berth.live.private import file_system, make_folders, refuse_network_file_system
from berth.live.store import Store


def modes(folder):
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()}


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_state_folder_is_its_owners_only(tmp_path):
    folder = tmp_path / "state"
    store = Store(folder)
    Tokens(folder).add("alice", "user")
    store.set_fact("any", "thing")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = modes(folder)
    assert {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "tokens.json"} <= set(found)
    assert set(found.values()) == {0o600}
    store.close()


def test_an_open_state_folder_of_an_older_berth_is_closed_at_start(tmp_path):
    folder = tmp_path / "state"
    Store(folder).close()
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    (folder / "up.log").write_text("old")
    (folder / "up.log").chmod(0o666)
    store = Store(folder)
    store.set_fact("any", "thing")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(modes(folder).values()) == {0o600}
    store.close()


def test_a_folder_of_other_things_is_refused_and_left_as_it_is(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh")
    script.chmod(0o755)
    tmp_path.chmod(0o755)
    with pytest.raises(InputError, match=r"is not a state folder: it has no journal, but train\.sh") as error:
        Store(tmp_path)
    assert "--state" in str(error.value)
    assert modes(tmp_path) == {"train.sh": 0o755}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_only_files_of_berth_are_closed(tmp_path):
    Store(tmp_path).close()
    for name in ("train.sh", "tokens.json"):
        (tmp_path / name).write_text("{}")
        (tmp_path / name).chmod(0o755)
    Store(tmp_path).close()
    assert (modes(tmp_path)["train.sh"], modes(tmp_path)["tokens.json"]) == (0o755, 0o600)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
10.0.0.1@tcp:/fs /scratch lustre rw 0 0
/dev/sdb1 /home/me/local\\040disk xfs rw 0 0
//nas/x /mnt cifs rw 0 0
tmpfs /mnt/ram tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/berth", "ext4"),
        ("/home/me/state", "nfs4"),
        ("/home/me/local disk/state", "xfs"),
        ("/homestead", "ext4"),
        ("/scratch/berth", "lustre"),
        ("/mnt/berth", "cifs"),
        ("/mnt/ram/berth", "tmpfs"),
    ],
)
def test_a_network_file_system_is_refused(tmp_path, folder, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    from pathlib import Path

    assert file_system(Path(folder), mounts) == kind
    if kind in ("nfs4", "lustre", "cifs"):
        with pytest.raises(InputError, match=f"network file system \\({kind}\\)") as error:
            refuse_network_file_system(Path(folder), mounts)
        assert "--work" in str(error.value)
    else:
        refuse_network_file_system(Path(folder), mounts)


@pytest.mark.usefixtures("umask")
def test_folders_on_the_way_are_their_owners_only_too(tmp_path):
    make_folders(tmp_path / "state-work" / "store" / "live")
    for folder in ("state-work", "state-work/store", "state-work/store/live"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700
