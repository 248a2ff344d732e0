"""Checkpoints of resident tables: rank 0 asks, and every owner writes its own shards in a thread.

Rank 0 sends its requests over the channel between stages, and the other owners follow them until it is done. Results
come by the key-value store of the process group, since they are for a thread.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from berth.train.process_group import ProcessGroup
from berth.train.resident.shard import ResidentShard
from berth.train.shards.files import can_write, probe_file, raise_first, shard_files, wait_until_saved
from berth.train.shards.shard_save import ShardSave
from berth.train.tables import State, arrays_of, from_arrays, split
from berth.train.tables.state import PART_BYTES, split_state


class ResidentCheckpoints:
    """One rank's part in saving and loading resident tables."""

    def __init__(
        self, process_group: ProcessGroup, shard: ResidentShard, owners: Mapping[str, Sequence[int]]
    ) -> None:
        self._process_group, self._channel, self._shard = process_group, process_group.channel, shard
        self._rank = process_group.rank_info.rank
        self._owners = owners
        every = {rank for ranks in owners.values() for rank in ranks}
        self._others = sorted(every - {0})  # that rank 0 asks
        self._is_owner = self._rank in every
        self._number = 0  # of the last save
        self._own: ShardSave | None = None
        self._sending: list[int] = []  # ranks whose parts rank 0 has not received to the end

    # Rank 0

    def unwritable_by(self, folder: Path) -> str | None:
        """Return which rank can't write to a folder, and why; None if all can."""
        with probe_file(folder) as request:
            self._ask({"do": "probe", **request})
            reasons = {rank: self._channel.receive(rank)["reason"] for rank in self._others}
        refused = (f"rank {rank} can't write there: {why}" for rank, why in reasons.items() if why)
        return next(refused, None)

    def start(self, folder: Path, suffix: str, *, changed_only: bool) -> dict[str, list[str]]:
        """Let all owners copy their shards and write them; returns the files of each table."""
        self._number += 1
        files = {
            table: shard_files(self._owners, len(ranks), suffix)[table]
            for table, ranks in self._owners.items()
        }
        request = {
            "do": "save",
            "number": self._number,
            "folder": str(folder.resolve()),
            "files": files,
            "changed_only": changed_only,
        }
        self._ask(request)
        errors = [self._save(request)] if self._is_owner else []
        errors += [self._channel.receive(rank)["error"] for rank in self._others]
        raise_first(errors)
        return files

    def finish(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file, raises `OSError` if one failed."""
        arrived: dict[int, dict[str, Any]] = {}

        def statuses() -> Iterator[dict[str, Any]]:
            if self._own is not None:
                yield self._own.status()
            for rank in self._others:
                if rank not in arrived and (published := self._take_published(rank)) is not None:
                    arrived[rank] = published
                yield arrived.get(rank) or {"done": False, "files": {}, "error": self._lost(rank)}

        return wait_until_saved(statuses)

    def _take_published(self, rank: int) -> dict[str, Any] | None:
        """Return what an owner has reported about its files, once it has."""
        store, key = self._process_group.store, self._key(rank)
        if not store.check([key]):
            return None
        found: dict[str, Any] = json.loads(store.get(key))
        store.delete_key(key)
        return found

    def _lost(self, rank: int) -> list[Any] | None:
        """Return the error of an owner whose heartbeat has stopped: it may never report."""
        monitor = self._process_group.monitor
        if monitor is None or not monitor.is_lost(rank):
            return None
        return [errno.ETIMEDOUT, f"rank {rank}, which writes a part of it, does not respond"]

    def collect(self, *, changed_only: bool) -> Iterator[tuple[str, State]]:
        """Yield the parts of all shards, for a folder that other ranks can't write to."""
        self._ask({"do": "send", "changed_only": changed_only})
        self._sending = list(self._others)
        yield from self._parts(changed_only=changed_only)
        for rank in self._others:
            while message := self._channel.receive(rank):
                yield message["table"], _state(message)
            self._sending.remove(rank)

    def load(self, table: str, state: State) -> None:
        """Send each owner its rows of a saved table."""
        ranks = self._owners[table]
        for rank, part in zip(ranks, split(state, len(ranks)), strict=True):
            if rank == self._rank:
                self._shard.load(table, part)
                continue
            for piece in split_state(part, PART_BYTES):
                self._channel.send(rank, {"do": "load", **_message(table, piece)})
            self._channel.flush()

    def end_requests(self) -> None:
        """Let the other ranks go on."""
        self._ask({"do": "end"})

    # The other owners

    def follow(self) -> None:
        """Do what rank 0 asks for until it has no more requests."""
        if not self._is_owner:
            return
        while (request := self._channel.receive(0))["do"] != "end":
            if request["do"] == "load":
                self._shard.load(request["table"], _state(request))
            elif request["do"] == "probe":
                self._answer({"reason": can_write(request)})
            elif request["do"] == "save":
                self._answer({"error": self._save(request)})
            else:
                for table, state in self._parts(changed_only=request["changed_only"]):
                    self._answer(_message(table, state))
                self._answer({})

    def _save(self, request: Mapping[str, Any]) -> list[Any] | None:
        """Start writing own shards; returns the error if a file can't be created."""
        self._number = request["number"]
        if self._own is not None:
            self._own.cancel()  # its checkpoint has failed, or is complete
        files = {
            str(number): request["files"][spec.name][self._owners[spec.name].index(self._rank)]
            for number, spec in enumerate(self._shard.specs)
        }
        self._own = None
        publish = partial(self._publish, self._key(self._rank))
        try:
            self._own = ShardSave(self._shard, {**request, "files": files, "streamed": False}, publish)
        except OSError as error:
            return [error.errno, error.strerror]
        return None

    def _publish(self, key: str, save: ShardSave) -> None:
        """Report to rank 0 that the files are on disk, or why they are not; called by the thread."""
        if self._rank != 0:
            with suppress(RuntimeError):  # rank 0 has ended
                self._process_group.store.set(key, json.dumps({**save.status(), "done": True}))

    def _parts(self, *, changed_only: bool) -> Iterator[tuple[str, State]]:
        for number, spec in enumerate(self._shard.specs):
            for part in self._shard.parts(number, changed_only=changed_only):
                for piece in split_state(part, PART_BYTES):
                    yield spec.name, piece

    def _key(self, rank: int) -> str:
        return f"berth/saved/{self._number}/{rank}"

    def _ask(self, request: Mapping[str, Any]) -> None:
        for rank in self._sending:  # collecting was given up, as when the disk is full
            while self._channel.receive(rank):
                pass
        self._sending = []
        for rank in self._others:
            self._channel.send(rank, dict(request))
        self._channel.flush()

    def _answer(self, message: Mapping[str, Any]) -> None:
        self._channel.send(0, dict(message))
        self._channel.flush()


def _message(table: str, state: State) -> dict[str, Any]:
    """Return a part of a table as a message."""
    arrays = arrays_of(state)
    numbers = {name: arrays.pop(name).item() for name in ("whole", "day")}
    parts = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return {"table": table, "numbers": numbers, "arrays": parts}


def _state(message: Mapping[str, Any]) -> State:
    arrays = {name: tensor.numpy() for name, tensor in message["arrays"].items()}
    return from_arrays({**arrays, **{name: np.asarray(one) for name, one in message["numbers"].items()}})
