"""Click logs in Parquet: a label, columns of numbers (dense features) and columns of ids (slots).

The label is the column called label, click or target, else the first. Text columns are slots, and so are whole
numbers in columns whose name begins with C or says slot, id or cat; all other numbers are dense features.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from berth.errors import InputError
from berth.train.data.rows import SLOT_SHIFT, Bad, Ints, Rows, slot_bases

_BLOCK = 1 << 16
_LABELS = ("label", "click", "clicked", "target", "y")
_SLOT_NAME = re.compile(r"^c\d+$|slot|cat|(^|_)id($|_|\d)", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-fA-F]{1,8}")
_MASK = (1 << (SLOT_SHIFT - 1)) - 1


def parquet_rows(path: Path, offset: int = 0) -> Iterator[Rows]:
    """Rows of a file from a row on."""
    try:
        scan = pl.scan_parquet(path)
        schema = scan.collect_schema()
        label, dense, slots = _roles(dict(schema), str(path))
        while True:
            frame = scan.slice(offset, _BLOCK).collect()
            if not len(frame):
                return
            yield _rows(frame, label, dense, slots, offset)
            offset += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"can't be read as Parquet: {error}", where=str(path)) from None


def _roles(schema: dict[str, pl.DataType], where: str) -> tuple[str, list[str], list[str]]:
    names = list(schema)
    label = next((name for name in names if name.lower() in _LABELS), names[0] if names else "")
    dense, slots = [], []
    for name in names:
        kind = schema[name]
        if name == label:
            continue
        if kind in (pl.String, pl.Categorical) or (kind.is_integer() and _SLOT_NAME.search(name)):
            slots.append(name)
        elif kind.is_numeric() or kind == pl.Boolean:
            dense.append(name)
        else:
            raise InputError(f"column {name!r} is {kind}: neither numbers nor ids", where=where)
    if not schema or not (schema[label].is_numeric() or schema[label] == pl.Boolean):
        raise InputError("has no column of labels", where=where, hint="call it `label`: 0 or 1")
    return label, dense, slots


def _rows(frame: pl.DataFrame, label: str, dense: list[str], slots: list[str], offset: int) -> Rows:
    labels = frame[label].cast(pl.Float64).fill_null(-1).fill_nan(-1).to_numpy()
    good = (labels == 0) | (labels == 1)
    bad = [Bad(offset + int(row) + 1, "the label is neither 0 nor 1") for row in np.flatnonzero(~good)]
    features = [frame[name].cast(pl.Float32).fill_null(0).fill_nan(0).to_numpy() for name in dense]
    bases = slot_bases(len(slots))
    keys = [bases[slot] + _ids(frame[name]) for slot, name in enumerate(slots)]
    numbers = np.flatnonzero(good) + offset + 1
    count = len(frame)
    return Rows(
        np.stack(keys, axis=1)[good] if keys else np.empty((int(good.sum()), 0), np.int64),
        _signed_log(np.stack(features, axis=1)[good]) if features else np.empty((count, 0), np.float32)[good],
        labels[good].astype(np.int64),
        numbers,
        numbers,
        bad,
    )


def _signed_log(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.sign(values) * np.log1p(np.abs(values))


def _ids(column: pl.Series) -> Ints:
    """0 for missing ones; whole numbers and short hexadecimal text as they are, other text hashed."""
    missing = column.is_null().to_numpy()
    if column.dtype.is_integer():
        values = column.fill_null(0).cast(pl.Int64, strict=False).to_numpy().astype(np.int64)
        small = (values >= 0) & (values < _MASK)
        found = np.where(small, values, values & _MASK)
    else:
        text = column.cast(pl.String).fill_null("")
        known = text.unique()
        numbers = pl.Series([_number(word) for word in known], dtype=pl.Int64)
        found = text.replace_strict(known, numbers, return_dtype=pl.Int64).to_numpy()
    return np.where(missing, 0, found + 1)


def _number(word: str) -> int:
    if _HEX.fullmatch(word):
        return int(word, 16)
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) & _MASK
