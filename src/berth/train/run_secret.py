"""The secret of a run: from the environment, or from a private file that rank 0 makes where all ranks can read it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from berth.errors import InputError
from berth.train.servers.auth import SECRET_VARIABLE, Secret

JOB_FOLDER = "BERTH_FOLDER"  # of a job of the controller: private, and shared by its hosts
_KEY = "secret_file"
_PREFIX = "berth-secret-"


def run_secret(store: Any, keep: ExitStack, *, is_main: bool) -> Secret:
    """Return the secret that all ranks share; `store` has no authentication, so it holds the path of a file only."""
    if SECRET_VARIABLE in os.environ:
        if is_main:
            store.set(_KEY, "")
        return Secret.find()
    if not is_main:
        return shared_secret(store.get(_KEY).decode() or None)
    secret = Secret.random()
    store.set(_KEY, keep.enter_context(secret_file(secret)))
    return secret


@contextmanager
def secret_file(secret: Secret) -> Iterator[str]:
    """Write the secret to a temporary file that only this user can read."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=os.environ.get(JOB_FOLDER)) as folder:
        path = Path(folder, "secret")
        path.touch(mode=0o600)
        path.write_text(secret.environment()[SECRET_VARIABLE])
        yield str(path)


def shared_secret(path: str | None) -> Secret:
    """Return the secret of rank 0, from the environment or from the file that rank 0 published.

    Anyone who reaches the key-value store can publish a path, so the file must be one of `secret_file`, and one that
    only this user can read.
    """
    if path is None or SECRET_VARIABLE in os.environ:
        return Secret.find()
    try:
        file = os.lstat(path)
    except OSError as error:
        raise InputError(
            f"the secret of rank 0 can't be read ({error.strerror}: {path})",
            hint=f"workers on several hosts need a shared secret: set {SECRET_VARIABLE} for all of them",
        ) from error
    private = stat.S_ISREG(file.st_mode) and file.st_uid == os.getuid() and not file.st_mode & 0o077
    if not private or not Path(path).parent.name.startswith(_PREFIX):
        raise InputError("is not a private file of this user, so it is not the run's secret", where=path)
    return Secret.find(path)
