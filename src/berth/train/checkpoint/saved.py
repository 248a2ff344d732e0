"""A saved table to look at, away from any training: its rows, and what rules it had."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.errors import InputError, UnknownNameError
from berth.train.checkpoint.manifest import DamagedError, Manifest
from berth.train.checkpoint.shelf import Shelf
from berth.train.sparse import TableSpec
from berth.train.tables import Admission, Initialiser, Life, Optimiser, State, Table

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table as it was after a step."""

    step: int
    spec: TableSpec
    state: State  # keys ascend

    @property
    def weights(self) -> Floats:
        """[row, dim]."""
        return self.state.records[:, : self.spec.dim]

    @property
    def optimiser_state(self) -> Floats:
        """[row, what the optimiser keeps]."""
        end = self.state.records.shape[1] - (3 if self.spec.life else 0)
        return self.state.records[:, self.spec.dim : end]

    @property
    def life(self) -> Floats | None:
        """[row, (shows, clicks, day last seen)] of a table with a life cycle."""
        return self.state.records[:, -3:] if self.spec.life else None


def chain_at(folder: str | Path, step: int | None = None) -> tuple[Shelf, list[Manifest]]:
    """The newest checkpoint of a folder that can be used, or that of a step."""
    shelf = Shelf(folder)
    if not shelf.steps():
        raise InputError(
            "holds no checkpoint", where=str(folder), hint="make one: berth train ... --checkpoint DIR"
        )
    if step is None:
        chain = shelf.newest()
        if chain is None:
            raise none_usable(shelf)
        return shelf, chain
    if step not in shelf.steps():
        kept = ", ".join(f"{known:,}" for known in shelf.steps())
        raise InputError(
            f"holds no checkpoint of step {step:,}", where=str(folder), hint=f"there are: {kept}"
        )
    try:
        return shelf, shelf.chain(step)
    except DamagedError as error:
        raise InputError(f"the checkpoint of step {step:,} is refused: {error}", where=str(folder)) from None


def none_usable(shelf: Shelf, hint: str | None = None) -> InputError:
    """What to say of a folder in which every checkpoint is damaged."""
    what = "none of the checkpoints here can be used"
    return InputError("\n  ".join([what, *shelf.refusals()]), where=str(shelf.root), hint=hint)


def table_names(chain: list[Manifest]) -> list[str]:
    """The tables of a checkpoint."""
    return list(chain[-1].run["tables"])


def saved_table(folder: str | Path, name: str | None = None, step: int | None = None) -> SavedTable:
    """One table of a checkpoint; the name may be left out where there is only one."""
    shelf, chain = chain_at(folder, step)
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
    spec = spec_of(chain[-1].run["tables"][name])
    return SavedTable(chain[-1].step, spec, loaded(shelf, chain, spec).save())


def loaded(shelf: Shelf, chain: list[Manifest], spec: TableSpec) -> Table:
    """A table as it was: that of the full checkpoint, and what changed since laid over it."""
    table = table_of(spec)
    for state in shelf.states(chain, spec.name):
        table.load(state)
    return table


def table_of(spec: TableSpec) -> Table:
    """An empty table of a kind."""
    return Table(
        spec.dim,
        optimiser=spec.optimiser,
        initialiser=spec.initialiser,
        admission=spec.admission,
        life=spec.life,
    )


def spec_of(told: dict[str, Any]) -> TableSpec:
    """A table's rules as the manifest tells them."""
    lower, upper = told["optimiser"]["bounds"]
    rule = Optimiser(**{**told["optimiser"], "bounds": (float(lower), float(upper))})
    return TableSpec(
        told["name"],
        told["dim"],
        rule,
        Initialiser(**told["initialiser"]),
        Admission(**told["admission"]) if told["admission"] else None,
        Life(**told["life"]) if told["life"] else None,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """How a table changed from one checkpoint to another."""

    only_first: int
    only_second: int
    same: int
    changed: int
    largest: float  # of any weight
    mean: float  # distance of the rows that changed
    most_changed: list[tuple[int, float]]  # key, distance


def difference(first: SavedTable, second: SavedTable, most: int = 5) -> Difference:
    """Row by row; tables of different widths can't be compared."""
    if first.spec.dim != second.spec.dim:
        raise InputError(f"rows of {first.spec.dim} and of {second.spec.dim} weights can't be compared")
    _, here, there = np.intersect1d(
        first.state.keys, second.state.keys, assume_unique=True, return_indices=True
    )
    moved = _moved(first.weights[here], second.weights[there])
    distance = np.sqrt((moved.astype(np.float64) ** 2).sum(axis=1))
    changed = distance > 0
    top = np.argsort(-distance, kind="stable")[:most]
    return Difference(
        len(first.state.keys) - len(here),
        len(second.state.keys) - len(there),
        int((~changed).sum()),
        int(changed.sum()),
        float(moved.max(initial=0.0)),
        float(distance[changed].mean()) if changed.any() else 0.0,
        [(int(first.state.keys[here][row]), float(distance[row])) for row in top if distance[row] > 0],
    )


def _moved(before: Floats, after: Floats) -> Floats:
    """How far each weight went: what became infinite or not a number went as far as can be."""
    with np.errstate(invalid="ignore"):
        way = np.abs(before - after)
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    return np.where(same, np.float32(0), np.where(np.isnan(way), np.float32(np.inf), way))


def shrunk(saved: SavedTable, *, days: int = 1, shorter_than: float | None = None) -> SavedTable:
    """Without the rows that died in so many days of the life cycle, or whose weights are nearly nothing."""
    if saved.spec.life is None and shorter_than is None:
        raise InputError(
            "the table has no life cycle, so nothing dies by itself", hint="give --shorter-than, e.g. 0.001"
        )
    table = table_of(saved.spec)
    table.load(saved.state)
    if shorter_than is not None:
        length = np.sqrt((saved.weights.astype(np.float64) ** 2).sum(axis=1))
        table.delete(saved.state.keys[length < shorter_than])
    if saved.spec.life is not None:
        for _ in range(days):
            table.end_day()
    return replace(saved, state=table.save())
