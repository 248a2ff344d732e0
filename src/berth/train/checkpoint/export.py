"""Checkpoints for other programs: dense weights as torch's state dict, tables as Parquet; and changed ones kept."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from berth.errors import InputError
from berth.train.checkpoint.arrays import ArrayFile
from berth.train.checkpoint.dense import weights_of
from berth.train.checkpoint.manifest import Manifest, folder_of, publish, sync_folder
from berth.train.checkpoint.saved import SavedTable, chain_at, loaded, spec_of
from berth.train.checkpoint.shelf import Shelf
from berth.train.tables import State, arrays_of


def export_dense(folder: str | Path, path: str | Path, step: int | None = None) -> int:
    """Writes the dense weights, to be read by `torch.load(path, weights_only=True)`; how many there are."""
    import torch

    shelf, chain = chain_at(folder, step)
    weights = weights_of(*shelf.dense(chain[-1]))
    torch.save(weights, Path(path))
    return sum(weight.numel() for weight in weights.values())


def export_table(saved: SavedTable, path: str | Path, *, state: bool = False) -> int:
    """Writes a table as Parquet: key, weights and on request what the optimiser keeps; how many rows."""
    import polars as pl

    keys = saved.state.keys.view(np.uint64)
    columns = {"key": pl.Series(keys), "weights": pl.Series(np.ascontiguousarray(saved.weights))}
    if state and saved.optimiser_state.shape[1]:
        columns["optimiser"] = pl.Series(np.ascontiguousarray(saved.optimiser_state))
    if saved.life is not None:
        for number, name in enumerate(("shows", "clicks", "day_seen")):
            columns[name] = pl.Series(np.ascontiguousarray(saved.life[:, number]))
    temporary = Path(f"{path}.partial")
    try:
        pl.DataFrame(columns).write_parquet(temporary)
        temporary.rename(path)
    except OSError as error:
        raise InputError(f"can't be written: {error}", where=str(path)) from None
    return len(keys)


def _state(shelf: Shelf, chain: list[Manifest], name: str, changed: SavedTable) -> State:
    """As one whole, not as one change after another: who waits for a row is told by the last of them alone."""
    if name == changed.spec.name:
        return changed.state
    return loaded(shelf, chain, spec_of(chain[-1].run["tables"][name])).save()


def write_changed(folder: str | Path, out: str | Path, changed: SavedTable) -> None:
    """A copy of a checkpoint with one table replaced, in a folder of its own: a training can go on from it."""
    shelf, chain = chain_at(folder, changed.step)
    target = Shelf(out)
    if target.steps():
        raise InputError("holds checkpoints already", where=str(out), hint="name a new folder")
    newest = chain[-1]
    place = folder_of(target.root, newest.step)
    place.mkdir(parents=True)
    shutil.copyfile(folder_of(shelf.root, newest.step) / newest.dense, place / newest.dense)
    parts = {newest.dense: newest.parts[newest.dense]}
    tables: dict[str, str] = {}
    for number, name in enumerate(newest.run["tables"]):
        tables[name] = f"table-{number}.bin"
        with ArrayFile(place / tables[name]) as file:
            file.write(arrays_of(_state(shelf, chain, name, changed)), {"table": name})
            parts[tables[name]] = file.finish()
    with (place / newest.dense).open("rb") as copied:
        os.fsync(copied.fileno())
    sync_folder(place)
    publish(place, replace(newest, kind="full", base=None, parts=parts, tables=tables))
