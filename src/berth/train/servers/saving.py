"""A worker's side of checkpoints that servers write: all servers write their shards at once, to a shared folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.train.servers.auth import CONTROL_RANK
from berth.train.servers.connection import ClientOptions
from berth.train.servers.protocol import Flag, Kind, pack_json, read_json
from berth.train.servers.secret import Secret
from berth.train.servers.server_pool import ServerPool
from berth.train.servers.transport import Address

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


def unwritable_by(pool: ServerPool, folder: Path) -> str | None:
    """Return which server can't write to a folder, and why; None if all can."""
    with probe_file(folder) as request:
        numbers = [pool.send(shard, Kind.PROBE, [pack_json(request)]) for shard in range(len(pool))]
        reasons = {shard: read_json(frame.arrays()[0]) for shard, frame in pool.responses(numbers)}
    refused = (
        f"{pool[shard].name} can't write there: {why}" for shard, why in sorted(reasons.items()) if why
    )
    return next(refused, None)


def shard_files(tables: Iterable[str], shards: int, suffix: str) -> dict[str, list[str]]:
    """Return the names of the files of each table, by shard."""
    return {
        table: [f"table-{number}.shard-{shard}-of-{shards}{suffix}.bin" for shard in range(shards)]
        for number, table in enumerate(tables)
    }


class ShardSaves:
    """Checkpoints written by servers; their results come by connections of their own, for a background thread."""

    def __init__(
        self,
        addresses: Sequence[Address],
        secret: Secret,
        options: ClientOptions,
        *,
        workers: int,
        generation: int,
    ) -> None:
        self._connect: Callable[[], ServerPool] = lambda: ServerPool(
            addresses,
            secret,
            ClientOptions(shared=False, timeout_s=options.timeout_s, tls=options.tls),
            rank=CONTROL_RANK,
            workers=workers,
            generation=generation,
        )
        self._control: ServerPool | None = None

    def start(
        self,
        pool: ServerPool,
        folder: Path,
        tables: Mapping[str, Sequence[int]],
        suffix: str,
        *,
        changed_only: bool,
        streamed: bool,
    ) -> dict[str, list[str]]:
        """Start saving the tables, which must be locked; returns the files of each table, by server."""
        files = shard_files(tables, len(pool), suffix)
        numbers = []
        for shard in range(len(pool)):
            request = {
                "folder": str(folder.resolve()),
                "files": {str(tables[table][shard]): names[shard] for table, names in files.items()},
                "changed_only": changed_only,
                "streamed": streamed,
            }
            numbers.append(pool.send(shard, Kind.SAVE, [pack_json(request)], flags=Flag.NONE))
        raise_first([read_json(frame.arrays()[0]) for _, frame in pool.responses(numbers)])
        if streamed:
            self.wait()  # before the tables are unlocked
        return files

    def wait(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file, raises `OSError` if one failed."""
        self._control = self._control or self._connect()
        pause_s = _FIRST_PAUSE_S
        while True:
            found = [read_json(frame.arrays()[0]) for _, frame in self._control.send_all(Kind.SAVED)]
            raise_first([status["error"] for status in found])
            if all(status["done"] for status in found):
                return {name: facts for status in found for name, facts in status["files"].items()}
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close the connections."""
        if self._control is not None:
            self._control.close()
            self._control = None


def raise_first(errors: Sequence[Any]) -> None:
    """Raise the first error, (number, text), as an `OSError`."""
    for error in errors:
        if error is not None:
            raise OSError(int(error[0]), str(error[1]))
