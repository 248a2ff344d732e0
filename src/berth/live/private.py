"""Files that only their owner can read, whatever the umask, and where they must not be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from berth.errors import InputError

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_JOURNAL = "journal.sqlite"
# prefixes of names
_OWN = ("controller.", "endpoint.json", "tokens.", "admin.token", "attempts", "up.log", _JOURNAL)
_NETWORK = (
    "nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "ncpfs", "gpfs", "beegfs", "fhgfs", "ceph", "fuse.ceph",
    "glusterfs", "fuse.glusterfs", "fuse.sshfs", "afs", "pvfs2", "orangefs", "panfs", "wekafs", "ocfs2", "gfs2",
)  # fmt: skip


def private_folder(folder: Path) -> None:
    """Make a state folder of mode 0700 with files of mode 0600, or make it so; refuse a folder of other things."""
    make_folders(folder)
    try:
        entries = list(os.scandir(folder))
        _refuse_other_folder(folder, [entry.name for entry in entries])
        folder.chmod(FOLDER_MODE)
        for entry in filter(lambda entry: _is_own(entry.name), entries):
            mode = entry.stat(follow_symlinks=False).st_mode
            if (stat.S_ISREG(mode) or stat.S_ISSOCK(mode)) and stat.S_IMODE(mode) != FILE_MODE:
                os.chmod(entry.path, FILE_MODE)
    except PermissionError as error:
        raise InputError(
            "belongs to another user",
            where=str(error.filename or folder),
            hint="choose a folder of your own with --state",
        ) from None


def make_folders(folder: Path) -> None:
    """Make a folder and those missing on the way to it, all of mode 0700, whatever the umask."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True, mode=FOLDER_MODE)


def _is_own(name: str) -> bool:
    return name.removeprefix(".").startswith(_OWN)


def _refuse_other_folder(folder: Path, names: list[str]) -> None:
    """Refuse a folder that has no journal but files of another kind: its modes are not berth's to change."""
    others = sorted(name for name in names if not _is_own(name) and name != "lost+found")
    if others and _JOURNAL not in names:
        raise InputError(
            f"is not a state folder: it has no journal, but {others[0]}",
            where=str(folder),
            hint="name a new or an empty folder with --state",
        )


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 that appears whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def make_private(path: Path) -> None:
    """Make an empty file of mode 0600 where there is none."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    path.chmod(FILE_MODE)


def refuse_network_file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """Refuse a folder on a network file system: SQLite's write-ahead log and its locks do not work there."""
    kind = file_system(folder, mounts)
    if kind in _NETWORK:
        raise InputError(
            f"is on a network file system ({kind}), which can't hold a journal",
            where=str(folder),
            hint="keep the state on a local disk (--state), and share only the folder of attempts (--work)",
        )


def file_system(folder: Path, mounts: Path) -> str | None:
    """Return the type of the file system that a folder is on, by the table of mounts."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return None
    folder = folder.resolve()
    found: tuple[int, str] | None = None
    for _, place, kind, *_ in lines:
        point = Path(place.replace("\\040", " "))
        if folder.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), kind
    return found[1] if found else None
