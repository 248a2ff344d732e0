"""Measured step times: a CSV file with one row per run.

    placement,step_time,local_bsz          gpus,machines,seconds,model
    1124,0.93,8                            16,2,0.41,bert

`placement` lists the GPUs on each machine: `4+4+12`, or one digit per machine, so `1124` is four machines and
`16` is two (1 and 6). For sixteen GPUs on one machine use the columns `gpus` and `machines`, which take
precedence. A row that can't be read is an error with its line and column; no row is dropped.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from berth.arrays import BoolArray, FloatArray, Int64Array
from berth.errors import InputError, nearest
from berth.spec import read_text

_NAMES = {
    "placement": ("placement",),
    "gpus": ("gpus", "num_replicas"),
    "machines": ("machines", "num_nodes"),
    "step_s": ("step_time", "seconds"),
    "batch": ("local_bsz", "batch"),
    "model": ("model",),
}
_FIELD = re.compile(r'(?:^|,)("(?:[^"]|"")*"|[^,]*)')
_EXAMPLE = "the first line names the columns, for example: placement,step_time,local_bsz"


@dataclass(frozen=True, eq=False)
class Measurements:
    """Step times of one model, a row per run; `batch` is per GPU, None where the file has no such column."""

    labels: tuple[str, ...]  # GPUs per machine, largest first, where known: "4+2+1"
    gpus: Int64Array
    machines: Int64Array
    step_s: FloatArray
    batch: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.step_s)

    def take(self, rows: BoolArray) -> Measurements:
        """The rows where `rows` is true."""
        labels = tuple(label for label, taken in zip(self.labels, rows, strict=True) if taken)
        batch = None if self.batch is None else self.batch[rows]
        return Measurements(labels, self.gpus[rows], self.machines[rows], self.step_s[rows], batch)

    @cached_property
    def shapes(self) -> Int64Array:
        """A number per row, equal where GPUs and machines are: the same point to the model."""
        pairs = np.stack([self.gpus, self.machines], axis=1)
        return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One field of the file and its position."""

    text: str
    where: str

    def bad(self, what: str, hint: str | None = None) -> InputError:
        return InputError(what, where=self.where, hint=hint)


def read_measurements(path: str | Path) -> dict[str, Measurements]:
    """The measurements of each model in a CSV file; without a column `model`, of one named like the file."""
    path = Path(path)
    lines = [(n, line) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError("is empty", where=str(path), hint=_EXAMPLE)
    header = _cells(path, *lines[0])
    columns = _columns(path, header)
    rows: dict[str, list[tuple[str, int, int, float, float]]] = {}
    for number, line in lines[1:]:
        cells = _cells(path, number, line)
        if len(cells) != len(header):
            raise InputError(
                f"has {len(cells)} fields, the first line has {len(header)}", where=f"{path}:{number}:1"
            )
        named = {name: cells[index] for name, index in columns.items()}
        model = named["model"].text if "model" in named else path.stem
        if not model:
            raise named["model"].bad("the model's name is empty")
        rows.setdefault(model, []).append(_row(named))
    if not rows:
        raise InputError("has no rows below the first line", where=str(path), hint=_EXAMPLE)
    return {model: _as_columns(found, "batch" in columns) for model, found in rows.items()}


def parse_placement(text: str) -> tuple[int, ...]:
    """GPUs on each machine, largest first: `4+4+12` -> (12, 4, 4), `1124` -> (4, 2, 1, 1)."""
    parts = text.split("+") if "+" in text else list(text)
    counts = [int(part) if re.fullmatch(r"\s*[0-9]{1,6}\s*", part) else 0 for part in parts]
    if not counts or min(counts) < 1:
        raise InputError(
            f"{text!r} is not a placement",
            hint="write the GPUs on each machine: 4+4+12, or 1124 (one digit per machine, none of them 0)",
        )
    return tuple(sorted(counts, reverse=True))


def _cells(path: Path, number: int, line: str) -> list[_Cell]:
    try:
        fields = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{path}:{number}:1") from None
    starts = [match.start(1) + 1 for match in _FIELD.finditer(line)]
    cells = zip(fields, starts, strict=False)
    return [_Cell(text.strip(), f"{path}:{number}:{start}") for text, start in cells]


def _columns(path: Path, header: Sequence[_Cell]) -> dict[str, int]:
    """Return the index of each known column; other columns (notes, dates) are ignored."""
    found: dict[str, int] = {}
    for index, cell in enumerate(header):
        for name, spellings in _NAMES.items():
            if cell.text.lower() in spellings:
                if name in found:
                    raise cell.bad(f"column {cell.text!r} says the same as {header[found[name]].text!r}")
                found[name] = index
    if "step_s" not in found:
        raise _missing(path, header, "step_time", "step_time (or seconds)")
    if "placement" not in found and not {"gpus", "machines"} <= found.keys():
        raise _missing(path, header, "placement", "placement, or gpus and machines")
    return found


def _missing(path: Path, header: Sequence[_Cell], name: str, words: str) -> InputError:
    near = nearest(name, [cell.text for cell in header if cell.text])
    hint = f"is {near!r} meant? name it {name}" if near else _EXAMPLE
    return InputError(f"there is no column {words}", where=f"{path}:1:1", hint=hint)


def _row(named: dict[str, _Cell]) -> tuple[str, int, int, float, float]:
    label, gpus, machines = _shape(named)
    batch = _positive(named["batch"], "a batch size") if "batch" in named else math.nan
    return label, gpus, machines, _positive(named["step_s"], "a step time in seconds"), batch


def _shape(named: dict[str, _Cell]) -> tuple[str, int, int]:
    """Label, GPUs and machines of a row. `gpus` and `machines` settle what digits alone leave open."""
    given = {name: _whole(named[name]) for name in ("gpus", "machines") if name in named}
    if "placement" not in named:
        if given["machines"] > given["gpus"]:
            raise named["machines"].bad(f"{given['machines']} machines can't share {given['gpus']} GPUs")
        return f"{given['gpus']} on {given['machines']}", given["gpus"], given["machines"]
    cell = named["placement"]
    for counts in _readings(cell, settled=bool(given)):
        shape = {"gpus": sum(counts), "machines": len(counts)}
        if shape | given == shape:
            return "+".join(map(str, counts)), sum(counts), len(counts)
    says = " and ".join(f"{name} = {value}" for name, value in given.items())
    raise cell.bad(f"placement {cell.text!r} does not agree with {says}")


def _readings(cell: _Cell, settled: bool) -> list[tuple[int, ...]]:
    """One digit per machine first; where other columns settle it, also all GPUs on a single machine."""
    whole: list[tuple[int, ...]] = (
        [(int(cell.text),)] if settled and re.fullmatch(r"[1-9][0-9]{1,5}", cell.text) else []
    )
    try:
        return [parse_placement(cell.text), *whole]
    except InputError as error:
        if whole:
            return whole
        raise cell.bad(error.what, error.hint) from None


def _whole(cell: _Cell) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", cell.text) or int(cell.text) < 1:
        raise cell.bad(f"{cell.text!r} is not a whole number from 1 up")
    return int(cell.text)


def _positive(cell: _Cell, what: str) -> float:
    try:
        value = float(cell.text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise cell.bad(f"{cell.text!r} is not {what}", "write a number above 0, without a unit")
    return value


def _as_columns(rows: Sequence[tuple[str, int, int, float, float]], has_batch: bool) -> Measurements:
    labels, gpus, machines, step_s, batch = zip(*rows, strict=True)
    return Measurements(
        labels,
        np.array(gpus, dtype=np.int64),
        np.array(machines, dtype=np.int64),
        np.array(step_s, dtype=np.float64),
        np.array(batch, dtype=np.float64) if has_batch else None,
    )
