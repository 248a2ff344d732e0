"""Export of checkpoints: dense weights as a torch state dict, tables as Parquet, and modified copies."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from berth.errors import InputError
from berth.files import write_parquet
from berth.train.checkpoint.arrays import ArrayFile
from berth.train.checkpoint.dense import weights_of
from berth.train.checkpoint.inspect import SavedTable, load_table, open_checkpoint
from berth.train.checkpoint.manifest import Manifest, folder_of, publish, sync_folder
from berth.train.checkpoint.store import CheckpointStore, Notify
from berth.train.sparse import TableSpec
from berth.train.tables import State, arrays_of


def export_dense(
    folder: str | Path, path: str | Path, step: int | None = None, notify: Notify = lambda text: None
) -> int:
    """Write the dense weights for `torch.load(path, weights_only=True)`; returns their number.

    Without a step, checkpoints that are skipped because they are damaged are reported.
    """
    import torch

    checkpoint_store, chain = open_checkpoint(folder, step, notify)
    weights = weights_of(*checkpoint_store.dense(chain[-1]))
    torch.save(weights, Path(path))
    return sum(weight.numel() for weight in weights.values())


def export_table(saved: SavedTable, path: str | Path, *, state: bool = False) -> int:
    """Write a table as Parquet: key, weights and optionally the optimiser state; returns the number of rows."""
    import polars as pl

    keys = saved.state.keys.view(np.uint64)
    columns = {"key": pl.Series(keys), "weights": pl.Series(np.ascontiguousarray(saved.weights))}
    if state and saved.optimiser_state.shape[1]:
        columns["optimiser"] = pl.Series(np.ascontiguousarray(saved.optimiser_state))
    if saved.decay is not None:
        for number, name in enumerate(("shows", "clicks", "day_seen")):
            columns[name] = pl.Series(np.ascontiguousarray(saved.decay[:, number]))
    write_parquet(pl.DataFrame(columns), path)
    return len(keys)


def _state(checkpoint_store: CheckpointStore, chain: list[Manifest], name: str, changed: SavedTable) -> State:
    """Return a table as one whole state: only the last delta has the keys pending admission."""
    if name == changed.spec.name:
        return changed.state
    return load_table(checkpoint_store, chain, TableSpec.from_json(chain[-1].run["tables"][name])).save()


def write_changed(folder: str | Path, out: str | Path, changed: SavedTable) -> None:
    """Write a copy of a checkpoint with one table replaced to a new folder; a run can resume from it."""
    checkpoint_store, chain = open_checkpoint(folder, changed.step)
    target = CheckpointStore(out)
    if target.steps():
        raise InputError("already holds checkpoints", where=str(out), hint="give a new folder")
    newest = chain[-1]
    place = folder_of(target.root, newest.step)
    place.mkdir(parents=True)
    shutil.copyfile(folder_of(checkpoint_store.root, newest.step) / newest.dense, place / newest.dense)
    parts = {newest.dense: newest.parts[newest.dense]}
    tables: dict[str, list[str]] = {}
    for number, name in enumerate(newest.run["tables"]):
        tables[name] = [f"table-{number}.bin"]
        with ArrayFile(place / tables[name][0]) as file:
            file.write(arrays_of(_state(checkpoint_store, chain, name, changed)), {"table": name})
            parts[tables[name][0]] = file.finish()
    with (place / newest.dense).open("rb") as copied:
        os.fsync(copied.fileno())
    sync_folder(place)
    publish(place, replace(newest, kind="full", base=None, parts=parts, tables=tables))
