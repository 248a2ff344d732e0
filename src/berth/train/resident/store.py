"""The sparse store of a rank whose tables are in the memory of the replicas that use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from berth.errors import InputError, UnknownNameError
from berth.train.process_group import ProcessGroup
from berth.train.resident.checkpoints import ResidentCheckpoints
from berth.train.resident.exchange import Exchange
from berth.train.resident.lookups import Lookups
from berth.train.resident.shard import ResidentShard
from berth.train.resident.steps import StepEnd
from berth.train.resident.table import ResidentTable, spread
from berth.train.shards.routing import Route, make_route
from berth.train.sparse import Floats, Keys, TableSpec
from berth.train.tables import State
from berth.train.tables.decay import shows_and_clicks
from berth.train.tables.store import as_keys

_MAX_ANNOUNCED = 64  # batches per table
_TIMED_STEPS = 1000  # the last ones


class ResidentStore:
    """A `SparseStore` whose rows are sharded over the ranks of a stage.

    All ranks of a stage make the same calls. Every rank of the run has such a store: in evaluations rank 0 may look up
    tables of other stages, and it saves and loads all of them.
    """

    is_shard = True

    def __init__(
        self, process_group: ProcessGroup, owners: Mapping[str, Sequence[int]], device: torch.device
    ) -> None:
        info, layout = process_group.rank_info, process_group.layout
        self.device = device
        self._rank = info.rank
        ranks = layout.stage_ranks(process_group.stage)
        self._in_stage = Exchange(process_group.group, len(ranks), process_group.replica)
        self._in_run = Exchange(None, info.world_size, info.rank)
        self._tables = {
            name: ResidentTable(number, list(ranks)) for number, (name, ranks) in enumerate(owners.items())
        }
        self._own = [table for table in self._tables.values() if info.rank in table.owners]
        self._shard = ResidentShard(device)
        self._lookups = Lookups(self._in_stage, ranks, self._in_run, self._tables, self._shard)
        self._end_step = StepEnd(self._in_stage, list(self._tables), self._own, self._shard)
        self._exchange_s: deque[float] = deque(maxlen=_TIMED_STEPS)  # wall-clock time of a step's exchanges
        self.checkpoints = ResidentCheckpoints(process_group, self._shard, owners)

    @property
    def names(self) -> Mapping[str, Any]:
        """Return the tables of all stages, by name."""
        return self._tables

    def open(self, tables: Sequence[TableSpec]) -> None:
        """Create this rank's shards of the tables."""
        for spec in tables:
            table = self._known(spec.name)
            if table.spec is not None and table.spec != spec:
                raise InputError(
                    f"two different tables are named {spec.name!r}", hint="give each Embedding its own name"
                )
            table.spec = spec
        self._shard.open([spec for spec in tables if self._rank in self._known(spec.name).owners])

    def prefetch(self, table: str, keys: Keys) -> None:
        """Announce keys of the next step; not with admission, whose pulls count."""
        found = self._table(table)
        if found.opened.admission is None and len(found.announced) < _MAX_ANNOUNCED:
            found.announced.append(make_route(as_keys(keys), len(found.owners)))

    def pull(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return a row for each key, duplicates included; missing rows are created."""
        found, route = self._routed(table, keys)
        return spread(route, self._lookups.pull(found, route).cpu(), out)

    def peek(self, table: str, keys: Keys, out: Floats | None = None) -> Floats:
        """Return what `pull` would, without creating rows."""
        found, route = self._routed(table, keys)
        return spread(route, self._lookups.peek(found, route).cpu(), out)

    def pull_to_device(self, table: str, keys: Keys, *, create: bool = True) -> Tensor:
        """Return a row for each key on the device; missing rows are created, unless this is for inference."""
        found, route = self._routed(table, keys)
        rows = self._lookups.pull(found, route) if create else self._lookups.peek(found, route)
        return rows.index_select(0, found.positions(route, self.device))

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: Floats,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Keep gradients until the end of the step."""
        there = torch.from_numpy(np.ascontiguousarray(gradients, np.float32)).to(self.device)
        self.push_from_device(table, keys, there, shows=shows, clicks=clicks)

    def push_from_device(
        self,
        table: str,
        keys: Keys,
        gradients: Tensor,
        *,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        """Keep gradients, which are on the device, until the end of the step."""
        found, requested = self._table(table), as_keys(keys)
        shape = (len(requested), found.opened.dim)
        if tuple(gradients.shape) != shape:
            raise InputError(
                f"{len(requested)} keys need gradients of shape {shape}, not {tuple(gradients.shape)}"
            )
        views = shows_and_clicks(found.opened.counts_clicks, len(requested), shows, clicks)
        found.pushed.append((requested, gradients, views))

    def end_step(self, step: int) -> None:
        """Exchange the gradients of this step, and request rows of the next one."""
        del step  # ranks take every step together
        self._end_step()
        self._exchange_s.append(self._in_stage.take_seconds())

    def end_day(self) -> None:
        """End the day of own rows; prefetched ones are out of date then."""
        for table in self._own:
            table.drop_prefetched()
        self._shard.end_day()

    def save(self, *, changed_only: bool = False) -> Iterator[tuple[str, State]]:
        """Yield the parts of all tables, which rank 0 collects from their owners."""
        return self.checkpoints.collect(changed_only=changed_only)

    def unwritable_by(self, folder: Path) -> str | None:
        """Return which rank can't write to a folder, and why; None if all can."""
        return self.checkpoints.unwritable_by(folder)

    def start_save(
        self, folder: Path, suffix: str, *, changed_only: bool, streamed: bool
    ) -> dict[str, list[str]]:
        """Let all owners write their shards; returns the files of each table."""
        assert not streamed  # there are no tables beyond memory
        return self.checkpoints.start(folder, suffix, changed_only=changed_only)

    def finish_save(self) -> dict[str, dict[str, Any]]:
        """Wait until all shards are on disk; returns hash and size of each file. For a background thread."""
        return self.checkpoints.finish()

    def load(self, table: str, state: State) -> None:
        """Send each owner its rows of a saved table."""
        self._known(table)
        self.checkpoints.load(table, state)

    def statistics(self) -> Mapping[str, Any]:
        """Return those of this rank's shards; the session adds up those of all ranks."""
        sent = self._in_stage.sent_bytes + self._in_run.sent_bytes
        step_s = median(self._exchange_s) if self._exchange_s else None
        return {**self._shard.statistics(), "exchanged_bytes": sent, "exchange_s": step_s}

    def close(self) -> None:
        """Wait for rows on their way, then drop the tables."""
        for table in self._own:
            table.drop_prefetched()
        self._shard.close()

    def attend_checkpoint(self) -> None:
        """On rank 0, let the other owners go on; on these, do what it asks for until then."""
        self.checkpoints.end_requests() if self._rank == 0 else self.checkpoints.follow()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Let any rank of the run peek at any table in the block, then wait until none does."""
        self._lookups.in_whole_run = True
        try:
            yield
            while self._lookups.serve():
                pass
        finally:
            self._lookups.in_whole_run = False

    def _routed(self, table: str, keys: Keys) -> tuple[ResidentTable, Route]:
        found = self._table(table)
        return found, found.route_of(as_keys(keys))

    def _table(self, name: str) -> ResidentTable:
        """Return an open table."""
        table = self._known(name)
        assert table.spec is not None
        return table

    def _known(self, name: str) -> ResidentTable:
        if name not in self._tables:
            raise UnknownNameError("table", name, self._tables)
        return self._tables[name]
