"""Read, compare and shrink the tables of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError
from berth.train.checkpoint.manifest import DamagedError, Manifest
from berth.train.checkpoint.store import CheckpointStore, Notify
from berth.train.sparse import TableSpec
from berth.train.tables import State, Table

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table after a step."""

    step: int
    spec: TableSpec
    state: State  # keys ascend

    @property
    def weights(self) -> Floats:
        """Return the weights, [row, dim]."""
        return self.state.records[:, : self.spec.dim]

    @property
    def optimiser_state(self) -> Floats:
        """Return the optimiser state of each row."""
        end = self.state.records.shape[1] - (3 if self.spec.decay else 0)
        return self.state.records[:, self.spec.dim : end]

    @property
    def decay(self) -> Floats | None:
        """Return [row, (shows, clicks, day last used)] of a table with a decay policy."""
        return self.state.records[:, -3:] if self.spec.decay else None


def open_checkpoint(
    folder: str | Path, step: int | None = None, notify: Notify = lambda text: None
) -> tuple[CheckpointStore, list[Manifest]]:
    """Return the newest usable checkpoint of a folder, or that of a step, with its chain; reports damaged ones."""
    checkpoint_store = CheckpointStore(folder)
    if not checkpoint_store.steps():
        raise InputError(
            "holds no checkpoint", where=str(folder), hint="create one: berth train ... --checkpoint DIR"
        )
    if step is None:
        chain = checkpoint_store.newest(notify)
        if chain is None:
            raise no_usable_checkpoint(checkpoint_store)
        return checkpoint_store, chain
    if step not in checkpoint_store.steps():
        kept = ", ".join(f"{known:,}" for known in checkpoint_store.steps())
        raise InputError(
            f"holds no checkpoint of step {step:,}", where=str(folder), hint=f"available: {kept}"
        )
    try:
        return checkpoint_store, checkpoint_store.chain(step)
    except DamagedError as error:
        raise InputError(
            f"the checkpoint of step {step:,} can't be used: {error}", where=str(folder)
        ) from None


def no_usable_checkpoint(checkpoint_store: CheckpointStore, hint: str | None = None) -> InputError:
    """Return the error for a folder in which every checkpoint is damaged."""
    what = "none of the checkpoints here can be used"
    return InputError(
        "\n  ".join([what, *checkpoint_store.refusals()]), where=str(checkpoint_store.root), hint=hint
    )


def table_names(chain: list[Manifest]) -> list[str]:
    """Return the names of the tables of a checkpoint."""
    return list(chain[-1].run["tables"])


def saved_table(
    folder: str | Path,
    name: str | None = None,
    step: int | None = None,
    notify: Notify = lambda text: None,
) -> SavedTable:
    """Return one table of a checkpoint; the name is optional if there is only one.

    Without a step, checkpoints that are skipped because they are damaged are reported.
    """
    checkpoint_store, chain = open_checkpoint(folder, step, notify)
    names = table_names(chain)
    if name is None:
        if len(names) != 1:
            raise InputError(
                f"holds {len(names)} tables",
                where=str(folder),
                hint=f"choose with --table: {', '.join(names)}",
            )
        name = names[0]
    if name not in names:
        raise UnknownNameError("table", name, names)
    spec = TableSpec.from_json(chain[-1].run["tables"][name])
    return SavedTable(chain[-1].step, spec, load_table(checkpoint_store, chain, spec).save())


def load_table(checkpoint_store: CheckpointStore, chain: list[Manifest], spec: TableSpec) -> Table:
    """Return a table from a full checkpoint and the deltas that follow it."""
    table = table_of(spec)
    for state in checkpoint_store.states(chain, spec.name):
        table.load(state)
    return table


def table_of(spec: TableSpec) -> Table:
    """Return an empty table."""
    return Table(
        spec.dim,
        optimiser=spec.optimiser,
        initialiser=spec.initialiser,
        admission=spec.admission,
        decay=spec.decay,
    )


@dataclass(frozen=True, slots=True)
class TableDiff:
    """Differences of a table between two checkpoints."""

    only_first: int
    only_second: int
    same: int
    changed: int
    largest: float  # of any weight
    mean: float  # distance of the rows that changed
    most_changed: list[tuple[int, float]]  # key, distance


def diff_tables(first: SavedTable, second: SavedTable, most: int = 5) -> TableDiff:
    """Compare two tables row by row."""
    if first.spec.dim != second.spec.dim:
        raise InputError(
            f"tables of {first.spec.dim} and {second.spec.dim} weights per row can't be compared"
        )
    _, here, there = np.intersect1d(
        first.state.keys, second.state.keys, assume_unique=True, return_indices=True
    )
    changes = _changes(first.weights[here], second.weights[there])
    distance = np.sqrt((changes.astype(np.float64) ** 2).sum(axis=1))
    changed = distance > 0
    top = np.argsort(-distance, kind="stable")[:most]
    return TableDiff(
        len(first.state.keys) - len(here),
        len(second.state.keys) - len(there),
        int((~changed).sum()),
        int(changed.sum()),
        float(changes.max(initial=0.0)),
        float(distance[changed].mean()) if changed.any() else 0.0,
        [(int(first.state.keys[here][row]), float(distance[row])) for row in top if distance[row] > 0],
    )


def _changes(before: Floats, after: Floats) -> Floats:
    """Return the absolute change of each weight; a change to or from NaN is infinite."""
    with np.errstate(invalid="ignore"):
        change = np.abs(before - after)
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    return np.where(same, np.float32(0), np.where(np.isnan(change), np.float32(np.inf), change))


def shrink_table(saved: SavedTable, *, days: int = 1, shorter_than: float | None = None) -> SavedTable:
    """Return the table without rows that expire within `days`, or whose weight vector is shorter than a limit."""
    if saved.spec.decay is None and shorter_than is None:
        raise InputError(
            "the table has no decay policy, so no row expires", hint="give --shorter-than, e.g. 0.001"
        )
    table = table_of(saved.spec)
    table.load(saved.state)
    if shorter_than is not None:
        length = np.sqrt((saved.weights.astype(np.float64) ** 2).sum(axis=1))
        table.delete(saved.state.keys[length < shorter_than])
    if saved.spec.decay is not None:
        for _ in range(days):
            table.end_day()
    return replace(saved, state=table.save())
