"""A worker's side of checkpoints that servers write: all servers write their shards at once, to a shared folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from berth.train.servers.auth import CONTROL_RANK
from berth.train.servers.connection import ClientOptions
from berth.train.servers.protocol import Flag, Kind, pack_json, read_json
from berth.train.servers.secret import Secret
from berth.train.servers.server_pool import ServerPool
from berth.train.servers.transport import Address
from berth.train.shards.files import probe_file, raise_first, shard_files, wait_until_saved


def unwritable_by(pool: ServerPool, folder: Path) -> str | None:
    """Return which server can't write to a folder, and why; None if all can."""
    with probe_file(folder) as request:
        numbers = [pool.send(shard, Kind.PROBE, [pack_json(request)]) for shard in range(len(pool))]
        reasons = {shard: read_json(frame.arrays()[0]) for shard, frame in pool.responses(numbers)}
    refused = (
        f"{pool[shard].name} can't write there: {why}" for shard, why in sorted(reasons.items()) if why
    )
    return next(refused, None)


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
        """Wait until all shards are on disk; returns hash and size of each file.

        Raises `OSError` if one failed, and `NotFiniteError` if rows are not finite.
        """
        pool = self._control = self._control or self._connect()
        return wait_until_saved(
            lambda: (read_json(frame.arrays()[0]) for _, frame in pool.send_all(Kind.SAVED))
        )

    def close(self) -> None:
        """Close the connections."""
        if self._control is not None:
            self._control.close()
            self._control = None
