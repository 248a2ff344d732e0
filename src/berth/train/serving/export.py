"""Write a checkpoint as a folder that a program without berth can serve.

keys.pt2, dense.pt2     programs of `torch.export`
table-N.keys.npy        sorted keys of a table, int64
table-N.weights.npy     its rows in that order, float32
check.npz               inputs of a few examples and the output for them
manifest.json           what these are
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import berth
from berth.errors import InputError
from berth.train.checkpoint.inspect import load_table, open_checkpoint
from berth.train.checkpoint.store import Notify
from berth.train.data import ClickStream, criteo
from berth.train.data.batch import Share
from berth.train.data.columns import Layout
from berth.train.data.sample import layout_examples
from berth.train.inference import best_step, load_for_inference
from berth.train.serving.programs import Inputs, Lookup, Programs, check_programs, export_programs, recorded
from berth.train.sparse import TableSpec
from berth.train.tables import Table
from berth.zoo import LayeredModel

FORMAT = 1
_EXAMPLES = 5
_CHECKED = (_EXAMPLES, 2, 1)
_SLOT_BITS = 32  # a key of generated clicks is its id below its slot


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folder: Path
    step: int
    rows: dict[str, int]  # by table
    bytes: int


def export_for_serving(
    checkpoint: str | Path,
    out: str | Path,
    model: nn.Module | str | None = None,
    *,
    step: int | Literal["best"] | None = None,
    inputs: Inputs | None = None,
    overwrite: bool = False,
    notify: Notify = print,
) -> Exported:
    """Write the model of a checkpoint to a new folder `out`; `model` and `step` as in `load_for_inference`.

    With `overwrite` it may replace an export, but no other folder. `notify` gets what `load_for_inference` reports.
    `inputs` are a batch of at least two examples. It is needed only for a model that was trained on a data source of
    your own and has no `example_batch`.
    """
    folder = Path(out)
    _check_replaceable(folder, overwrite)
    wanted = best_step(checkpoint, notify) if step == "best" else step
    store, chain = open_checkpoint(checkpoint, wanted, notify)
    loaded = load_for_inference(checkpoint, model, step=chain[-1].step)
    run = chain[-1].run
    example = _checked_inputs(inputs if inputs is not None else example_inputs(loaded, run["data"]))
    programs = export_programs(loaded, example)
    for examples in _CHECKED:
        check_programs(programs, loaded, {name: value[:examples] for name, value in example.items()})
    partial = _folder_beside(folder)
    try:
        _write_program(programs.keys, partial / "keys.pt2")
        _write_program(programs.dense, partial / "dense.pt2")
        used = dict.fromkeys(lookup.layer.spec_name for lookup in programs.lookups)
        specs = [TableSpec.from_json(run["tables"][name]) for name in used]
        tables = {
            spec.name: _write_table(load_table(store, chain, spec), partial, f"table-{number}")
            for number, spec in enumerate(specs)
        }
        kept = {name: np.load(partial / one["keys"], mmap_mode="r") for name, one in tables.items()}
        known = with_known_keys(example, programs.lookups, kept) if inputs is None else example
        output, _ = recorded(loaded, known)
        stored = {f"inputs/{name}": value.numpy() for name, value in known.items()}
        np.savez(partial / "check.npz", **stored, output=output.numpy())  # type: ignore[arg-type]
        document = _manifest(run, chain[-1].step, programs, example, tables)
        (partial / "manifest.json").write_text(json.dumps(document, indent=1) + "\n")
        _check_replaceable(folder, overwrite)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise InputError(f"can't be written: {error}", where=str(out)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Exported(folder, chain[-1].step, {name: one["rows"] for name, one in tables.items()}, size)


def _write_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a program by way of memory: torch's own writer ends the process if the disk is full."""
    packed = io.BytesIO()
    torch.export.save(program, packed)
    path.write_bytes(packed.getbuffer())


def _check_replaceable(folder: Path, overwrite: bool) -> None:
    """Raise if a folder exists, unless it may be overwritten and is an export or empty."""
    if not os.path.lexists(folder):
        return
    if not overwrite:
        raise InputError("exists already", where=str(folder), hint="choose another name, or give --force")
    try:
        document = json.loads((folder / "manifest.json").read_text())
        is_export = isinstance(document, dict) and {"format", "berth", "lookups", "tables"} <= document.keys()
    except (OSError, ValueError):
        is_export = folder.is_dir() and not any(folder.iterdir())
    if not is_export or folder.is_symlink():
        raise InputError(
            "is not an export of berth, so it is not overwritten",
            where=str(folder),
            hint="choose another name",
        )


def _folder_beside(folder: Path) -> Path:
    """Return a new folder on the same file system, with the usual permissions."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o777 & ~mask)
    except OSError as error:
        raise InputError(f"can't be written: {error}", where=str(folder)) from None
    return made


def example_inputs(model: nn.Module, data: Mapping[str, Any]) -> Inputs:
    """Return a batch like those of the data that a checkpoint was trained on."""
    if data.get("columns"):
        return layout_examples(Layout.from_json(data["columns"]), _EXAMPLES)[0]
    if data.get("kind") in ("clicks", "files"):
        inputs: Inputs = next(ClickStream().batches(_EXAMPLES, 0, Share(), 0)).inputs
        return inputs
    if isinstance(model, LayeredModel):
        drawn: Inputs = model.example_batch(_EXAMPLES, 0)[0]
        return drawn
    raise InputError(
        "the checkpoint does not say what inputs the model takes: it was trained on a data source of your own",
        hint="export from Python: export_for_serving(..., inputs=...), with a batch of a few examples",
    )


def with_known_keys(inputs: Inputs, lookups: Sequence[Lookup], kept: Mapping[str, Any]) -> Inputs:
    """Return drawn inputs with keys that have rows, of the same slot if it has any, where inputs are keys.

    Keys that were never trained read as drawn from their hash: such a check would pass whatever the rows are.
    """
    changed = dict(inputs)
    for name, value in inputs.items():
        for lookup in lookups:
            if value.dtype != torch.int64 or not torch.equal(lookup.keys.reshape(-1), value.reshape(-1)):
                continue
            keys, filled = kept[lookup.layer.spec_name], value.clone().reshape(-1)
            for at, key in enumerate(filled.tolist()):
                slot = key >> _SLOT_BITS
                first, last = np.searchsorted(keys, [slot << _SLOT_BITS, (slot + 1) << _SLOT_BITS])
                if last <= first:
                    first, last = 0, len(keys)
                if key >= 0:  # not padding
                    filled[at] = int(keys[first + at % (last - first)])
            changed[name] = filled.reshape(value.shape)
    return changed


def _checked_inputs(inputs: Any) -> Inputs:
    if not isinstance(inputs, dict) or not all(isinstance(value, Tensor) for value in inputs.values()):
        raise InputError("only a model whose inputs are a dictionary of tensors can be exported")
    counts = {len(value) for value in inputs.values()}
    if len(counts) != 1 or min(counts) < 2:
        raise InputError("the example inputs need the same number of examples each, at least two")
    return inputs


def _write_table(table: Table, folder: Path, name: str) -> dict[str, Any]:
    """Write rows in the order of their keys, with those that keys pending admission would get on their next use."""
    state = table.save()
    keys = state.keys
    if table.admission_filter is not None and len(state.waiting_keys):
        admitted = table.admission_filter.would_admit(state.waiting_keys)
        keys = np.concatenate([keys, state.waiting_keys[admitted]])
    keys = np.unique(keys if len(keys) else np.zeros(1, np.int64))  # an empty file can't be mapped
    np.save(folder / f"{name}.keys.npy", keys)
    np.save(folder / f"{name}.weights.npy", table.peek(keys))
    return {
        "keys": f"{name}.keys.npy",
        "weights": f"{name}.weights.npy",
        "rows": len(keys),
        "dim": table.dim,
        "unknown": _unknown(table),
    }


def _unknown(table: Table) -> dict[str, Any]:
    """Return how keys without a row read: drawn from their hash, for the share of keys that would be admitted."""
    admission = table.admission_filter.rule if table.admission_filter is not None else None
    if admission is None:
        share = 1.0
    elif admission.kind == "probability":
        share = admission.threshold
    else:  # a first use counts once, and scores nothing
        share = float(admission.threshold <= (1 if admission.kind == "count" else 0))
    how = table.initialiser
    return {"kind": how.kind, "scale": how.scale, "seed": how.seed, "share": share}


def _manifest(
    run: Mapping[str, Any], step: int, programs: Programs, example: Inputs, tables: dict[str, Any]
) -> dict[str, Any]:
    columns = served_columns(run["data"])
    lists = columns["multi"] if columns else ()
    return {
        "format": FORMAT,
        "berth": berth.__version__,
        "model": run["model"].partition(":")[2] or run["model"].partition(":")[0],
        "step": step,
        "inputs": {name: _signature(value, name in lists) for name, value in example.items()},
        "columns": columns,
        "lookups": [lookup.layer.spec_name for lookup in programs.lookups],
        "tables": tables,
        "output": {**_signature(programs.output), "probability": probability_rule(programs.output)},
    }


def served_columns(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the roles of columns of the training data, and of files whether all of them were text."""
    if data.get("kind") != "files":
        return data.get("columns")
    text = all(not name.endswith(".parquet") for name, _ in data["files"])
    return {**(data.get("columns") or criteo.LAYOUT.to_json()), "text": text}


def probability_rule(output: Tensor) -> str:
    """Return how the probability of a label follows from the output of a model."""
    pairs = output.exp().sum(dim=-1) if output.ndim > 1 and output.shape[-1] == 2 else None
    if pairs is not None and torch.allclose(pairs, torch.ones_like(pairs), atol=1e-4):
        return "exp of the last column"
    return "sigmoid"


def _signature(value: Tensor, lists: bool = False) -> dict[str, Any]:
    shape = ["batch", *(["longest"] if lists else value.shape[1:])]
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
