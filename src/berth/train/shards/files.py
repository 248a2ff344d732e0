"""Files of a checkpoint that several processes write: their names, who can write them, and when all are on disk."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.train.checkpoint.finite import NotFiniteError

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


@contextmanager
def probe_file(folder: Path) -> Iterator[dict[str, str]]:
    """Leave a file in a folder for other processes to find; yields what `can_write` takes."""
    probe = folder.resolve() / f".probe-{secrets.token_hex(8)}"
    content = secrets.token_hex(16)
    probe.write_text(content)
    try:
        yield {"probe": str(probe), "content": content}
    finally:
        probe.unlink()


def can_write(request: Mapping[str, Any]) -> str | None:
    """Return why this process can't write to the folder in which rank 0 has left a file, or None."""
    probe = Path(str(request.get("probe")))
    try:
        if probe.read_text() != request.get("content"):
            return "the folder is not that of rank 0"
        written = probe.with_name(f"{probe.name}-{secrets.token_hex(8)}")
        written.touch()
        written.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None


def shard_files(tables: Iterable[str], shards: int, suffix: str) -> dict[str, list[str]]:
    """Return the names of the files of each table, by shard."""
    return {
        table: [f"table-{number}.shard-{shard}-of-{shards}{suffix}.bin" for shard in range(shards)]
        for number, table in enumerate(tables)
    }


def raise_first(errors: Sequence[Any]) -> None:
    """Raise the first error, (number, text), as an `OSError`."""
    for error in errors:
        if error is not None:
            raise OSError(int(error[0]), str(error[1]))


def wait_until_saved(statuses: Callable[[], Iterable[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Ask, with growing pauses, for the `ShardSave.status` of every writer until all are done.

    Returns hash and size of each file; raises the first error, and `NotFiniteError` if rows are not finite.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        found = list(statuses())
        raise_first([status["error"] for status in found])
        for status in found:
            if status.get("not_finite") is not None:
                raise NotFiniteError(status["not_finite"])
        if all(status["done"] for status in found):
            return {name: facts for status in found for name, facts in status["files"].items()}
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
